"""`probe.evaluate` over whole datasets, against one pass by hand."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import probes
from tests.helpers.probe_reference import branch_loss, weights_of
from tests.helpers.state import snapshot


def make(**settings):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3)]
    model = nn.Sequential(*layers).double()
    x, y = torch.randn(11, 4, dtype=torch.float64), torch.arange(11) % 3
    return model, x, y, probes.attach(model, ["0", "1"], n=3, **settings)


@pytest.mark.parametrize("batch_size", [64, 4, 1])  # 11 samples in 4s: unequal batches
@pytest.mark.parametrize("kind", ["bce", "ce", F.cross_entropy])
def test_means_are_those_of_all_samples_in_eval_mode(kind, batch_size):
    model, x, y, probe = make(loss=kind)
    found = probe.evaluate((x, y), batch_size=batch_size)

    first = F.linear(x, model[0].weight, model[0].bias)
    features = {"0": first, "1": first / (1 + model[1].eps) ** 0.5}
    for layer, h in features.items():
        for branch, weight in enumerate(weights_of(probe, layer)):
            entry = found.sel(layer=layer, branch=branch)
            expected = branch_loss(h, weight, y, kind).item()
            np.testing.assert_allclose(entry["loss"], expected, rtol=1e-12)
            hits = ((h @ weight.mT).argmax(1) == y).double().mean().item()
            np.testing.assert_allclose(entry["accuracy"], hits)
    assert found.attrs["n_samples"] == 11
    assert found["n_targets"].values.tolist() == [11, 11]


def test_any_form_of_data_is_the_same_data():
    _, x, y, probe = make()
    dataset = TensorDataset(x, y)
    forms = [
        (x.numpy(), y.numpy()),
        ((x,), y),
        {"input": x, "labels": y},
        dataset,
        DataLoader(dataset, batch_size=3),
        [(x[:5], y[:5]), (x[5:], y[5:])],
    ]
    expected = probe.evaluate((x, y))
    for data in forms:
        xr.testing.assert_allclose(probe.evaluate(data), expected)


def test_positions_weigh_alike_whatever_batch_they_are_in():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3)).double()
    probe = probes.attach(model, "1", n=2, loss="ce")
    ids, y = torch.randint(0, 9, (5, 6)), torch.randint(0, 3, (5, 6))
    y[0, 1:], y[3], y[4, :2] = -100, -100, -100
    found = probe.evaluate((ids, y), batch_size=2)

    rows, targets = model[:2](ids)[y != -100], y[y != -100]
    for branch, weight in enumerate(weights_of(probe, "1")):
        expected = F.cross_entropy(rows @ weight.mT, targets).item()
        np.testing.assert_allclose(found["loss"][0, branch], expected, rtol=1e-12)
    assert found["n_targets"].item() == len(targets) == 1 + 6 + 6 + 4
    assert found.attrs["n_samples"] == 4  # the one without a target is left out


def test_a_seed_decides_which_samples_are_drawn():
    _, x, y, probe = make()
    found = [probe.evaluate((x, y), samples=5, seed=seed) for seed in (0, 0, 1)]
    xr.testing.assert_identical(found[0], found[1])
    assert not np.allclose(found[0]["loss"], found[2]["loss"])
    assert found[0].attrs["n_samples"] == 5


def test_the_model_and_a_pending_loss_are_left_alone():
    model, x, y, probe = make()
    model(x)
    before = snapshot(model)
    probe.evaluate((x[:6], y[:6]))
    assert snapshot(model) == before
    assert probe.loss(y).requires_grad
    assert probe.step == 1


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_leaves_nothing_behind(failure):
    model, x, y, probe = make()
    model(x)
    before = snapshot(model)
    calls = []

    def fail(*_):
        calls.append(None)
        if len(calls) > 1:
            raise failure

    with model[2].register_forward_hook(fail), pytest.raises(failure):
        probe.evaluate((x, y), batch_size=4)
    assert snapshot(model) == before
    assert not probe._capture.listening
    assert probe.loss(y).requires_grad


def test_a_detached_probe_and_bad_targets_are_refused():
    _, x, y, probe = make()
    with pytest.raises(ValueError, match="`y`: expected numbers from 0 to 1"):
        probe.evaluate((x, torch.randn(11, 3) * 5))
    probe.detach()
    with pytest.raises(RuntimeError, match="detached: evaluate needs its model"):
        probe.evaluate((x, y))


WEIGHTS = torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)


def squared_mean(logits, y):
    """Not a mean over rows: only all of them at once give it."""
    return F.cross_entropy(logits, y) ** 2


@pytest.mark.parametrize("batch_size", [1, 2, 4, 7, 11, None])
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(WEIGHTS),
        nn.CrossEntropyLoss(WEIGHTS, label_smoothing=0.1),
        nn.CrossEntropyLoss(ignore_index=1),
        partial(F.cross_entropy, weight=WEIGHTS),
        lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.MultiMarginLoss(),
        squared_mean,
    ],
)
def test_a_callable_loss_is_that_of_one_big_batch_whatever_the_batch_size(loss, batch_size):
    model, x, y, probe = make(loss=loss)
    found = probe.evaluate((x, y), batch_size=batch_size)
    features = F.linear(x, model[0].weight, model[0].bias)
    for branch, weight in enumerate(weights_of(probe, "0")):
        expected = loss(features @ weight.mT, y).item()
        np.testing.assert_allclose(found["loss"][0, branch], expected, rtol=1e-12)
        hits = ((features @ weight.mT).argmax(1) == y).double().mean().item()
        np.testing.assert_allclose(found["accuracy"][0, branch], hits)
    assert found["n_targets"].values.tolist() == [11, 11]
