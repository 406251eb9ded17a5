"""Two gloo processes on this machine, each with half of the batch, against one with all of it."""

import numpy as np
import pytest
import torch
import xarray as xr

from gradients import Trace, compare, noise
from tests.helpers.launch import run_ranks
from tests.helpers.small_network import make_batch, make_network, two_losses

KINDS = [f"{a}{b}" for a in ("ddp", "fsdp") for b in ("", " accumulated", " activation")]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("ranks") / "result"
    run_ranks("ranks_trace.py", str(output), ",".join(KINDS))
    return [torch.load(f"{output}.{rank}", weights_only=False) for rank in range(2)]


def whole_batch(**options):
    model = make_network(dropout=0.0).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trace = Trace(model, **options)
    for step in range(2):
        optimizer.zero_grad()
        trace.backward(*two_losses(model, *make_batch(seed=step)))
        optimizer.step()
    return trace.to_dataset()


@pytest.mark.parametrize("kind", KINDS)
def test_both_processes_have_the_numbers_of_the_whole_batch(results, kind):
    options = {"level": "activation", "layers": "drop"} if "activation" in kind else {}
    expected = whole_batch(**options)
    first, second = (xr.Dataset.from_dict(rank[kind]["trace"]) for rank in results)
    xr.testing.assert_identical(first, second)
    for name in expected.data_vars:
        np.testing.assert_allclose(first[name], expected[name], rtol=1e-9, err_msg=name)
    assert list(first["layer"].values) == list(expected["layer"].values)


@pytest.mark.parametrize(("kind", "n_micro_batches"), [("ddp", 2), ("ddp accumulated", 4)])
def test_processes_are_micro_batches_of_their_own(results, kind, n_micro_batches):
    model = make_network(dropout=0.0).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    alone = Trace(model, noise=True)
    for step in range(2):
        optimizer.zero_grad()
        parts = zip(*(part.chunk(n_micro_batches) for part in make_batch(seed=step)), strict=True)
        for index, (x, y) in enumerate(parts):
            losses = [loss / n_micro_batches for loss in two_losses(model, x, y)]
            alone.backward(*losses, update=index == n_micro_batches - 1)
        optimizer.step()

    together = xr.Dataset.from_dict(results[0][kind]["trace"])
    for name in ("n_micro_batches", "micro_batch_squared_norm", "squared_norm"):
        np.testing.assert_allclose(together[name], alone.to_dataset()[name], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_bitwise_what_it_is_without(results, kind):
    assert all(rank[kind]["bitwise"] for rank in results)


def test_what_cannot_be_right_is_refused(results):
    for rank in results:
        plain, joined, unsynchronised, late, more, alone, sharded, unequal = rank["refused"]
        assert "expected the DistributedDataParallel or fully_shard model" in plain
        assert "needs `backward` instead of `join`" in joined
        assert "set_requires_gradient_sync(False)" in unsynchronised
        assert "expected `fully_shard` before the trace" in late
        assert "parameters that it had when the trace was made" in more
        assert "expected the DistributedDataParallel or fully_shard model" in alone
        assert "expected a module that is not sharded" in sharded
        assert "as many mini-batches in each process, got between 4 and 5" in unequal


def test_compare_averages_over_the_processes_it_is_told_of(results):
    model = make_network(dropout=0.0).eval()
    whole = compare(model, two_losses(model, *make_batch()))["cosine_total"].item()
    for index, rank in enumerate(results):
        alone, together, wrapped = rank["compared"]
        half = [part.chunk(2)[index] for part in make_batch()]
        own = compare(model, two_losses(model, *half))["cosine_total"].item()
        np.testing.assert_allclose(alone, own, rtol=1e-12)
        np.testing.assert_allclose([together, wrapped], whole, rtol=1e-9)


def test_what_a_loss_reaches_in_one_process_counts_in_all(results):
    model = make_network(dropout=0.0).eval()
    logits, side = model(make_batch()[0])
    losses = (logits + side).square().mean(), side.cos().mean()
    expected = compare(model, losses)["cosine_total"].item()
    for rank in results:
        np.testing.assert_allclose(rank["one-sided"], expected, rtol=1e-9)


def test_noise_averages_over_the_processes_it_is_told_of(results):
    model = make_network(dropout=0.0).eval()
    x, y = make_batch(size=32)

    def cosines(rows):
        data, size = (x[rows.flatten()], y[rows.flatten()]), rows.size(1)
        losses = lambda a, b: two_losses(model, a, b)  # noqa: E731
        found = noise(model, data, losses, samples=None, batch_size=size)
        return found["cosine_total"].values

    rows = torch.arange(32).view(4, 8)
    for index, rank in enumerate(results):
        (alone, together, wrapped), n_samples = zip(*rank["noise"], strict=True)
        assert n_samples == (16, 32, 32)
        np.testing.assert_allclose(alone, cosines(rows.chunk(2, 1)[index]), rtol=1e-12)
        np.testing.assert_allclose(together, cosines(rows), rtol=1e-9)
        np.testing.assert_allclose(wrapped, cosines(rows), rtol=1e-9)
