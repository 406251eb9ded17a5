"""A trace in checkpoints and on disk: nothing that was recorded is lost."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from gradients import Trace, read_trace
from tests.helpers.small_network import make_batch, make_network, two_losses
from tests.helpers.systems import needs_posix


def three_losses(model, x, y):
    main, auxiliary = two_losses(model, x, y)
    return main, auxiliary, model.head.weight.square().sum()


def start(**options):
    model = make_network(dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, Trace(model, **options)


def train(model, optimizer, trace, steps, losses_of=two_losses):
    for step in steps:
        optimizer.zero_grad()
        trace.backward(*losses_of(model, *make_batch(seed=step)))
        optimizer.step()


def saved_and_loaded(state):
    """As a checkpoint goes through a file, in torch's safe form."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("losses_of", [two_losses, three_losses])
@pytest.mark.parametrize("every", [1, 3])
def test_the_record_of_a_resumed_training_is_that_of_an_uninterrupted_one(losses_of, every):
    model, optimizer, trace = start(every=every)
    train(model, optimizer, trace, range(4), losses_of)
    checkpoint = saved_and_loaded([x.state_dict() for x in (model, optimizer, trace)])
    train(model, optimizer, trace, range(4, 9), losses_of)

    resumed = start(every=every)
    for loaded, state in zip(resumed, checkpoint, strict=True):
        loaded.load_state_dict(state)
    assert resumed[2].step == 4
    train(*resumed, range(4, 9), losses_of)

    xr.testing.assert_identical(resumed[2].to_dataset(), trace.to_dataset())
    assert list(trace.to_dataset()["step"]) == list(range(0, 9, every))


def test_activations_are_resumed_too():
    options = {"level": "activation", "layers": "drop"}
    model, optimizer, trace = start(**options)
    train(model, optimizer, trace, range(3))

    resumed = start(**options)[2]
    resumed.load_state_dict(saved_and_loaded(trace.state_dict()))
    xr.testing.assert_identical(resumed.to_dataset(), trace.to_dataset())


def test_a_trace_without_rows_is_resumed():
    _, _, trace = start()
    resumed = start()[2]
    resumed.load_state_dict(saved_and_loaded(trace.state_dict()))
    assert resumed.to_dataset().sizes["step"] == resumed.step == 0


def test_loading_forgets_micro_batches_of_the_training_before():
    model, _, trace = start()
    state = trace.state_dict()
    trace.backward(*two_losses(model, *make_batch(seed=9)), update=False)
    trace.load_state_dict(state)
    model.zero_grad()
    trace.backward(*two_losses(model, *make_batch(seed=0)))

    other_model, _, expected = start()
    expected.backward(*two_losses(other_model, *make_batch(seed=0)))
    found, wanted = trace.to_dataset(), expected.to_dataset()
    # The running statistics of the norm differ, which these do not depend on while training.
    xr.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_a_state_of_another_trace_is_refused():
    state = start()[2].state_dict()
    with pytest.raises(ValueError, match="expected the level of this trace, activation, got param"):
        start(level="activation", layers="stem")[2].load_state_dict(state)
    with pytest.raises(ValueError, match="expected the layers of this trace"):
        Trace(torch.nn.Linear(1, 1)).load_state_dict(state)
    model, optimizer, trace = start()
    train(model, optimizer, trace, range(1))
    with pytest.raises(ValueError, match=r"expected the objectives \('a', 'b'\), got \('main'"):
        start(objectives=["a", "b"])[2].load_state_dict(trace.state_dict())


def test_the_latest_row_is_plain_numbers():
    model, optimizer, trace = start(every=2)
    assert trace.latest == {}
    train(model, optimizer, trace, range(4))

    record = trace.to_dataset().isel(step=-1)
    names = ("step", "loss_main", "loss_aux", "cosine_total", "conflict_share", "gradient_norm")
    assert set(trace.latest) == set(names)
    assert all(trace.latest[name] == record[name].item() for name in names)
    assert trace.latest["step"] == 2
    assert all(type(value) in (int, float) for value in trace.latest.values())


def test_the_latest_row_of_three_losses_names_them():
    model, optimizer, trace = start(objectives=["a", "b", "c"])
    train(model, optimizer, trace, range(2), three_losses)

    latest, record = trace.latest, trace.to_dataset().isel(step=-1)
    assert latest["loss/b"] == record["loss"].sel(objective="b")
    pair = record["cosine_total"].sel(objective="a", other_objective="c")
    np.testing.assert_equal(latest["cosine_total/a/c"], pair.item())
    assert "cosine_total/c/a" not in latest


@pytest.mark.parametrize("losses_of", [two_losses, three_losses])
def test_the_file_is_the_record(tmp_path, losses_of):
    path = tmp_path / "trace.jsonl"
    model, optimizer, trace = start(every=2, path=path)
    for step in range(5):
        train(model, optimizer, trace, [step], losses_of)
        xr.testing.assert_identical(read_trace(path), trace.to_dataset())


def test_a_file_is_never_overwritten_but_by_its_own_resumed_training(tmp_path):
    path = tmp_path / "trace.jsonl"
    model, optimizer, trace = start(path=path)
    train(model, optimizer, trace, range(3))
    checkpoint = saved_and_loaded([x.state_dict() for x in (model, optimizer, trace)])
    train(model, optimizer, trace, range(3, 7))  # then it crashed
    uninterrupted = trace.to_dataset()

    with pytest.raises(ValueError, match="holds a record already; give another path, or resume"):
        train(*start(path=path), range(1))
    xr.testing.assert_identical(read_trace(path), uninterrupted)

    resumed = start(path=path)
    for loaded, state in zip(resumed, checkpoint, strict=True):
        loaded.load_state_dict(state)
    assert list(read_trace(path)["step"]) == [0, 1, 2]
    train(*resumed, range(3, 7))
    xr.testing.assert_identical(read_trace(path), uninterrupted)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.jsonl"]


KILLED = """
import os, signal, sys, torch
from gradients import Trace

torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
trace = Trace(model, path=sys.argv[1])
for step in range(100):
    outputs = model(torch.full((1, 2), float(step)))
    trace.backward(outputs.sum(), outputs.square().sum())
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_posix
def test_a_killed_process_loses_nothing(tmp_path):
    path = tmp_path / "trace.jsonl"
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=root, check=False)
    assert run.returncode == -signal.SIGKILL

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    weight = model.weight.detach().double().numpy()
    bias = model.bias.detach().double().numpy()
    expected = []
    for step in range(7):
        x = np.full(2, float(step))
        outer, square = np.outer(np.ones(2), x), np.outer(2 * (weight @ x + bias), x)
        expected.append((outer * square).sum() + (2 * (weight @ x + bias)).sum())

    record = read_trace(path)
    assert list(record["step"]) == list(range(7))
    np.testing.assert_allclose(record["dot"].sum("layer"), expected, rtol=1e-5)


def test_a_torn_last_line_is_left_out(tmp_path):
    path = tmp_path / "trace.jsonl"
    model, optimizer, trace = start(path=path)
    train(model, optimizer, trace, range(3))
    path.write_text(path.read_text()[:-20])
    xr.testing.assert_identical(read_trace(path), trace.to_dataset().isel(step=slice(2)))


def test_what_is_no_record_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    for text in ("", "hello\n", "[1]\n", '{"a": 1}\n'):
        path.write_text(text)
        with pytest.raises(ValueError, match="`path`: expected a record that Trace"):
            read_trace(path)
    with pytest.raises(ValueError, match="`path`: expected a file in a folder that exists"):
        start(path=tmp_path / "none" / "trace.jsonl")


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_writes(tmp_path, monkeypatch, rank):
    path = tmp_path / "trace.jsonl"
    model, optimizer, trace = start(path=path, group=None)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    train(model, optimizer, trace, range(2))
    trace.load_state_dict(trace.state_dict())
    assert path.exists() == (rank == 0)
