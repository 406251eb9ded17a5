import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from resonance_toolkit import evaluating, preserving, preserving_rng
from tests.helpers.state import snapshot


def network():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2))
    model[1].eval()
    model[3].bias.requires_grad_(False)
    model(torch.randn(4, 3)).sum().backward()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
        model[0].weight[0, 1] = -0.0
    return model


def vandalise(model):
    torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
    model.train()
    model(torch.randn(4, 3)).sum().backward()
    for p in model.parameters():
        p.requires_grad_(not p.requires_grad)
        p.data.zero_()
    for b in model.buffers():
        b.zero_()


@pytest.mark.parametrize("failure", [None, RuntimeError, KeyboardInterrupt])
def test_preserving_restores_everything(failure):
    model = network()
    before = snapshot(model)
    try:
        with preserving(model):
            assert all(p.grad is None for p in model.parameters())
            vandalise(model)
            if failure:
                raise failure
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert snapshot(model) == before


def test_preserving_restores_scripted_parts_too():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its script outdated
        model = nn.Sequential(nn.Linear(3, 3), torch.jit.script(nn.BatchNorm1d(3)))
    before = snapshot(model)
    with preserving(model):
        vandalise(model)
    assert snapshot(model) == before


def test_preserving_spares_a_graph_that_is_still_wanted():
    model = nn.Linear(3, 2)
    loss = (model(torch.randn(4, 3, requires_grad=True)) ** 2).sum()
    with preserving(model):
        model.weight.data.zero_()
    loss.backward()  # a version bump would make this raise


@pytest.mark.parametrize("failure", [None, RuntimeError, KeyboardInterrupt])
def test_evaluating_gives_each_module_its_mode_back(failure):
    model = network()
    before = snapshot(model)
    try:
        with evaluating(model):
            assert not any(m.training for m in model.modules())
            if failure:
                raise failure
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert snapshot(model) == before


def test_preserving_rng_covers_all_three_generators():
    def draw():
        return torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002

    with preserving_rng():
        inside = draw()
    assert draw() == inside


def test_preserving_brings_back_what_was_replaced():
    model = network()
    other = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    before = snapshot(model)
    with preserving(model):
        for name, p in model.named_parameters():
            p.data = other[name]
        model[1].running_mean = torch.full((3,), 7.0)
        model.half()
        model[0].weight = nn.Parameter(torch.ones(3, 3))
    assert snapshot(model) == before
    assert all(not tensor.any() for tensor in other.values())


class Merging(nn.Linear):
    """Adds to its weight in eval mode, and takes it away again in train mode."""

    merged = False

    def train(self, mode=True):
        if mode == self.merged:
            with torch.no_grad():
                self.weight += -1 if mode else 1
            self.merged = not mode
        return super().train(mode)


def test_evaluating_lets_modules_undo_what_a_mode_does():
    model = nn.Sequential(Merging(2, 2), nn.ReLU())
    with torch.no_grad():
        model[0].weight.zero_()
    with evaluating(model):
        assert model[0].merged
    assert not model[0].merged
    assert not model[0].weight.any()
