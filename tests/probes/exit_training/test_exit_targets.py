"""What the targets of exits are understood as, and which are refused at the door."""

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import probes

Y = torch.arange(5) % 3


def make():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).double(), torch.randn(5, 4, dtype=torch.float64)


FORMS = {
    "int32": Y.int(),
    "bytes": Y.to(torch.uint8),
    "a column": Y[:, None],
    "one-hot": F.one_hot(Y, 3),
    "one-hot, true and false": F.one_hot(Y, 3).bool(),
}


@pytest.mark.parametrize("form", FORMS)
def test_classes_of_any_form(form):
    model, x = make()
    exits = probes.attach_exits(model, ["1", "3"])
    model(x)
    expected = exits.loss(Y)
    model(x)
    assert torch.equal(exits.loss(FORMS[form]), expected)
    exits.detach()

    record = probes.record_exits(model, (x, Y), ["1", "3"])
    xr.testing.assert_identical(probes.record_exits(model, (x, FORMS[form]), ["1", "3"]), record)


REFUSALS = {
    "logits": (torch.randn(5, 3) * 3, r"rows sum to one, got .*; logits are not labels"),
    "NaN": (torch.full((5, 3), float("nan")), "rows sum to one, got NaN"),
    "several labels": (torch.ones(5, 3), "got 1 to 1, with sums off by 2"),
    "several whole labels": (torch.ones(5, 3, dtype=torch.long), r"expected indices \(5,\)"),
    "real numbers": (torch.randn(5), r"expected indices \(5,\) .* of floating numbers"),
    "out of range": (Y + 1, "expected indices 0 to 2 .* got 1 to 3"),
    "nothing": (Y[:0], r"expected indices \(5,\)"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_targets_that_mean_nothing_are_refused(case):
    model, x = make()
    targets, message = REFUSALS[case]
    exits = probes.attach_exits(model, ["1", "3"])
    model(x)
    with pytest.raises(ValueError, match=message):
        exits.loss(targets)
    assert torch.isfinite(exits.loss(F.one_hot(Y, 3).half()))


@pytest.mark.parametrize("sample", [0, 4])
def test_inputs_that_are_no_numbers_are_named(sample):
    model, x = make()
    x[sample, 2] = float("nan")
    with pytest.raises(ValueError, match=f"`data`: expected inputs .* got NaN in sample {sample}"):
        probes.exits(model, (x, Y), ["1", "3"])
