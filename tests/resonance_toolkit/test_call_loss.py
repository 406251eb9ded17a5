"""A loss of the user's that does not fit is told what it was given."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradients
import landscape
import nudging
from resonance_toolkit import call_loss


class Answers(nn.Module):
    """Returns a mapping, as transformers' models do."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def forward(self, x):
        return {"logits": self.blocks(x)}


X, Y = torch.randn(6, 4), torch.randint(3, (6,))


def per_sample(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


VERBS = {
    "grid": lambda loss: landscape.grid(Answers(), (X, Y), loss=loss, size=3),
    "curvature": lambda loss: landscape.curvature(Answers(), (X, Y), loss=loss),
    "initial_norm": lambda loss: gradients.initial_norm(Answers(), (X, Y), loss=loss),
    "nudge": lambda loss: nudging.nudge(
        Answers(), (X, Y), nudging.backprop(), blocks="blocks.*", loss=loss
    ),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_a_loss_of_tensors_on_a_model_that_returns_none_gets_a_cure(verb):
    with pytest.raises(ValueError, match=r"`loss`: .* fails on outputs dict of \(.*logits_of"):
        verb(per_sample)


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_the_cure_works(verb):
    is_mean = verb is VERBS["initial_norm"]
    reduction = "mean" if is_mean else "none"
    verb(lambda out, y: F.cross_entropy(out["logits"], y, reduction=reduction))


def test_shapes_and_dtypes_are_told():
    with pytest.raises(ValueError, match=r"outputs \(2, 3\) of float32 and targets \(5,\) of"):
        call_loss(F.cross_entropy, torch.zeros(2, 3), torch.zeros(5, dtype=torch.int32))


def test_what_a_loss_says_itself_is_left_alone():
    def refuse(outputs, targets):
        raise ValueError("of my own")

    with pytest.raises(ValueError, match=r"^of my own$"):
        call_loss(refuse, X, Y)
