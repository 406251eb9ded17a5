"""A pair may hold several targets, which a loss of the user's reads; lone tensors are told so."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradients
import landscape
import nudging
from resonance_toolkit import take

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 1])
BOXES = torch.rand(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class Detector(nn.Module):
    """Classes and places, as detectors give them."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.classes = nn.Linear(5, 3)
        self.boxes = nn.Linear(5, 2)

    def forward(self, x):
        hidden = self.body(x).tanh()
        return {"classes": self.classes(hidden), "boxes": self.boxes(hidden)}


def loss_of_both(outputs, targets):
    if isinstance(targets, tuple):
        targets = dict(zip(("classes", "boxes"), targets, strict=True))
    missed = F.cross_entropy(outputs["classes"], targets["classes"], reduction="none")
    return missed + (outputs["boxes"] - targets["boxes"]).abs().sum(1)


def expected_loss(model):
    """By numpy: minus the logarithm of the right class's share, and the distance of the boxes."""
    outputs = {name: output.detach().numpy() for name, output in model(X).items()}
    shares = np.exp(outputs["classes"])
    right = shares[np.arange(6), CLASSES] / shares.sum(1)
    return np.mean(-np.log(right) + np.abs(outputs["boxes"] - BOXES.numpy()).sum(1))


@pytest.mark.parametrize(
    "data",
    [
        (X, {"classes": CLASSES, "boxes": BOXES}),
        (X, (CLASSES, BOXES)),
        ((X,), (CLASSES, BOXES)),
        ({"x": X}, (CLASSES, BOXES)),
        [(X[:4], (CLASSES[:4], BOXES[:4])), (X[4:], (CLASSES[4:], BOXES[4:]))],
    ],
)
def test_a_loss_gets_all_targets(data):
    torch.manual_seed(0)
    model = Detector().double()
    expected = expected_loss(model)

    surface = landscape.grid(model, data, loss=loss_of_both, size=3)
    assert surface["loss"].sel(alpha=0, beta=0).item() == pytest.approx(expected, rel=1e-12)
    nudged = nudging.nudge(model, data, nudging.backprop(), "body", loss=loss_of_both)
    assert nudged["loss"].item() == pytest.approx(expected, rel=1e-12)
    norm = gradients.initial_norm(model, data, loss=loss_of_both, batch_size=4)
    assert norm["loss"].item() == pytest.approx(expected, rel=1e-12)


def test_several_inputs_and_several_targets_are_one_pair():
    data = ((X, X[:, :2]), (CLASSES, BOXES))
    ((inputs, targets),) = take(data)
    assert [len(inputs), len(targets)] == [2, 2]


def test_two_batches_in_a_tuple_stay_two_batches():
    data = ((X[:4], CLASSES[:4]), (X[4:], CLASSES[4:]))
    ((inputs, targets),) = take(data)
    assert torch.equal(inputs, X)
    assert torch.equal(targets, CLASSES)


LONE = {
    "three tensors": ((X, X, CLASSES), TypeError, r"length 3; put several inputs .* \(\(x1, x2\)"),
    "samples alone": (list(X), TypeError, r"a Tensor in a list of length 6; .*beside single"),
    "no targets": ((X, None), TypeError, "expected targets beside the inputs, got None"),
    "one sample": ((X[0], CLASSES[0]), ValueError, r"make a batch, \(x\[None\], y\[None\]\)"),
    "text": ((X, ["cat"] * 6), TypeError, "targets that are numbers, got text; number the"),
    "array of text": ((X, np.array(["cat"] * 6)), TypeError, "got an array of text"),
    "edges": (((X, torch.ones(2, 9)), CLASSES), ValueError, "edges of a graph, belongs inside"),
}


@pytest.mark.parametrize("case", LONE)
def test_what_is_missing_is_said(case):
    data, error, message = LONE[case]
    with pytest.raises(error, match=f"^`data`: .*{message}"):
        take(data)
