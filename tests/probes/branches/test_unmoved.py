"""A probe whose active branches no optimizer knows says so, once, and only then."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes


def make(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    x, y = torch.randn(8, 4), torch.arange(8) % 3
    return model, x, y, probes.attach(model, "0", n=3, **settings)


def train(model, probe, x, y, optimizer, n_steps, micro_batches=1):
    """Returns at which losses something was said."""
    said = []
    n_losses = 0
    for _ in range(n_steps):
        for _ in range(micro_batches):
            main = F.cross_entropy(model(x), y)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                auxiliary = probe.loss(y)
            n_losses += 1
            if caught:
                assert [str(w.message)[:19] for w in caught] == ["the active branches"]
                assert caught[0].filename == __file__
                said.append(n_losses)
            (main + auxiliary).backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return said


def test_forgotten_branches_are_told_of_once_at_the_third_loss():
    model, x, y, probe = make()
    optimizer = torch.optim.AdamW(model.parameters())
    assert train(model, probe, x, y, optimizer, 8) == [3]


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.0),  # a warm-up begins so
        lambda p: torch.optim.AdamW(p, foreach=True),
        lambda p: torch.optim.AdamW(p, fused=True),
    ],
)
def test_nothing_is_said_of_branches_that_an_optimizer_has(make_optimizer):
    model, x, y, probe = make()
    optimizer = make_optimizer([*model.parameters(), *probe.parameters()])
    assert train(model, probe, x, y, optimizer, 6) == []


def test_nothing_is_said_while_gradients_are_accumulated():
    model, x, y, probe = make()
    optimizer = torch.optim.SGD([*model.parameters(), *probe.parameters()], lr=0.1)
    assert train(model, probe, x, y, optimizer, 3, micro_batches=20) == []


def test_accumulation_does_not_hide_forgotten_branches():
    model, x, y, probe = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, probe, x, y, optimizer, 4, micro_batches=3) == [7]


def test_nothing_is_said_of_branches_frozen_on_purpose_or_static():
    model, x, y, probe = make()
    probe.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, probe, x, y, optimizer, 6) == []

    model, x, y, probe = make(active=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, probe, x, y, optimizer, 6) == []


def test_losses_whose_gradients_go_elsewhere_say_nothing():
    model, x, y, probe = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(x)
        torch.autograd.grad(probe.loss(y), list(probe.parameters()))
        optimizer.step()


def test_a_frozen_model_tells_by_patience(monkeypatch):
    monkeypatch.setattr(probes._branches.unmoved, "_LOSSES_OF_A_FROZEN_MODEL", 10)
    model, x, y, probe = make()
    model.requires_grad_(False)

    def step(n_losses):
        said = []
        for index in range(n_losses):
            model(x)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                probe.loss(y).backward()
            said += [index + 1] * len(caught)
        return said

    assert step(20) == [11]


def test_a_loaded_state_is_no_optimizer():
    model, x, y, probe = make()
    state = probe.state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train(model, probe, x, y, optimizer, 2) == []
    probe.load_state_dict(state)
    assert train(model, probe, x, y, optimizer, 5) == [3]
