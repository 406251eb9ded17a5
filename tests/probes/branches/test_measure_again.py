"""Measurements of a pass whose loss was taken, and passes that are none of the training."""

from contextlib import suppress

import pytest
import torch
import xarray as xr
from torch import nn

import probes


def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x, y = torch.randn(5, 4), torch.arange(5) % 3
    return model, probes.attach(model, "1", n=3, sample=x), x, y


def test_the_targets_of_the_loss_are_those_measured():
    model, probe, x, y = make()
    model(x)
    probe.loss(y)
    xr.testing.assert_identical(probe.measure(), probe.measure(y))


def test_without_a_loss_there_are_no_targets():
    model, probe, x, y = make()
    model(x)
    with pytest.raises(ValueError, match=r"`y`: expected targets.*call probe.loss\(y\) first"):
        probe.measure()
    probe.loss(y)
    model(x)  # another pass: its targets are not known
    with pytest.raises(ValueError, match="no loss of the latest forward pass"):
        probe.measure()


@pytest.mark.parametrize("is_training", [True, False])
def test_a_pass_that_is_kept_is_as_it_was(is_training):
    model, probe, x, y = make()
    model(x)
    expected = probe.measure(y)
    with probe.keeping_pass():
        model.train(is_training)(x + 1)
    model.train()
    xr.testing.assert_identical(probe.measure(y), expected)
    assert probe.loss(y).requires_grad  # still due


def test_a_pass_is_kept_when_the_body_raises():
    model, probe, x, y = make()
    model(x)
    expected = probe.measure(y)
    with suppress(ZeroDivisionError), probe.keeping_pass():
        model(x + 1)
        raise ZeroDivisionError
    xr.testing.assert_identical(probe.measure(y), expected)
