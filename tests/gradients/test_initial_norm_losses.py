"""Losses of the user's whose mean is not over samples, in several batches."""

import pytest
import torch
from torch import nn

import gradients


def make_problem(n_ignored):
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (20,), generator=generator)
    y[:n_ignored] = -100
    return model, x, y


def mean_and_norm(model, loss, x, y):
    value = loss(model(x), y)
    parts = torch.autograd.grad(value, list(model.parameters()))
    return value.item(), torch.cat([part.flatten() for part in parts]).norm().item()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 5.0, 0.2]).double()])
@pytest.mark.parametrize("n_ignored", [0, 3, 9])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 20])
def test_batches_do_not_change_the_mean_over_targets_that_count(weights, n_ignored, batch_size):
    model, x, y = make_problem(n_ignored)
    loss = nn.CrossEntropyLoss(weights)
    expected = mean_and_norm(model, loss, x, y)

    result = gradients.initial_norm(model, (x, y), loss=loss, batch_size=batch_size)

    measured = result["loss"].item(), result["norm_backbone"].item()
    assert measured == pytest.approx(expected, rel=1e-10)
    assert result.attrs["loss"] == "CrossEntropyLoss"


LOSSES = {
    "one per sample": lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"),
    "the mean": lambda outputs, y: nn.functional.cross_entropy(outputs, y),
    "of the model": lambda model, x, y: nn.functional.cross_entropy(model(x), y),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_may_give_one_number_per_sample_their_mean_or_run_the_model_itself(kind):
    model, x, y = make_problem(0)
    expected = mean_and_norm(model, nn.CrossEntropyLoss(), x, y)

    result = gradients.initial_norm(model, (x, y), loss=LOSSES[kind], batch_size=7)

    measured = result["loss"].item(), result["norm_backbone"].item()
    assert measured == pytest.approx(expected, rel=1e-10)


def test_a_loss_of_another_shape_is_refused():
    model, x, y = make_problem(0)
    with pytest.raises(
        ValueError, match=r"^`loss`: expected one number .* each of 20 .*got \(3,\)"
    ):
        gradients.initial_norm(model, (x, y), loss=lambda outputs, _: outputs.mean(0))
