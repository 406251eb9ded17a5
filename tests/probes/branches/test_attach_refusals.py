"""What `probes.attach` and a probe refuse, in which words, and that nothing has changed then."""

import logging
import traceback

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import probes
from tests.helpers.probe_reference import layer_loss, weights_of
from tests.helpers.state import snapshot


class Tuples(nn.Module):
    """A layer that yields a tuple, one that yields text, one that never runs."""

    class Pair(nn.Module):
        def forward(self, x):
            return x * 2, "text"

    class Text(nn.Module):
        def forward(self, x):
            return "text"

    class Count(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    class Windows(nn.Module):
        def forward(self, x):
            return x.reshape(-1, 2)

    def __init__(self):
        super().__init__()
        self.pair, self.text, self.idle = self.Pair(), self.Text(), nn.Linear(4, 4)
        self.count, self.windows, self.head = self.Count(), self.Windows(), nn.Linear(4, 3)

    def forward(self, x):
        self.text(x), self.count(x), self.windows(x)
        return self.head(self.pair(x)[0])


BAD = {
    "unknown layer": ({"layers": "hed"}, "did you mean 'head'"),
    "unknown pattern": ({"layers": ["pair", "blocks.*"]}, r"nothing is called 'blocks\.\*'"),
    "no layer": ({"layers": []}, "`layers`: expected one or more"),
    "no tensor": ({"layers": "text"}, "'text': expected a floating tensor.*no tensor"),
    "whole numbers": (
        {"layers": "count"},
        "'count': expected a floating tensor.*one of torch.int64",
    ),
    "never runs": ({"layers": "idle"}, "'idle': the layer never runs in eval mode"),
    "not per sample": ({"layers": "windows"}, "one entry per sample first"),
    "no branches": ({"n": 0}, "`n`: expected a whole number of at least 1, got 0"),
    "half a branch": ({"n": 1.5}, "`n`: expected a whole number"),
    "alpha NaN": ({"alpha": float("nan")}, "`alpha`: expected a finite number.*nan"),
    "alpha negative": ({"alpha": -1.0}, "`alpha`: expected a finite number.*-1"),
    "alpha for a stranger": ({"alpha": {"tail": 1.0}}, "`alpha`: nothing is called 'tail'"),
    "alpha leaves one out": (
        {"layers": ["pair", "head"], "alpha": {"pair": 1.0}},
        "none for .'head'.",
    ),
    "alpha schedule to NaN": ({"alpha": lambda step: float("nan")}, "`alpha`: expected a finite"),
    "active": ({"active": 3}, "`active`: expected 0 to 2 or 'all', got 3"),
    "loss": ({"loss": "mse"}, "`loss`: expected one of bce, ce or a callable, got 'mse'"),
    "init": ({"init": "zeros"}, "`init`: expected one of orthogonal, normal, default"),
    "pool": ({"pool": "max"}, "`pool`: expected one of auto, cls"),
    "pool of a vector": ({"pool": "mean"}, "'mean' needs several positions"),
    "class token of a vector": ({"pool": "cls"}, "'cls' needs tokens"),
    "pool to a scalar": ({"pool": torch.sum}, "`pool`: expected features"),
    "method": ({"method": "fast"}, "`method`: expected one of exact, compressed"),
    "calls": ({"calls": "first"}, "`calls`: expected one of last, mean, all"),
    "classes": ({"classes": 0}, "`classes`: expected a whole number"),
    "compressed ce": ({"method": "compressed", "loss": "ce"}, "'compressed' exists for loss='bce'"),
    "compressed custom": ({"method": "compressed", "loss": F.cross_entropy}, "'compressed' exists"),
    "compressed all active": ({"method": "compressed", "active": "all"}, "all are active"),
    "sample of another shape": ({"sample": torch.zeros(2, 7)}, "a forward pass failed"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_refused_before_anything_changes(case):
    arguments, message = BAD[case]
    model = Tuples()
    before = snapshot(model)
    settings = {"layers": "pair", "n": 2, "sample": torch.zeros(5, 4)} | arguments
    with pytest.raises(ValueError, match=message):
        probes.attach(model, **settings)
    assert snapshot(model) == before


class Wrong(nn.Module):
    """Fails in its own forward, two calls deep."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.two(self.fold(self.one(x)))

    def fold(self, h):
        return h.reshape(7, -1)


@pytest.mark.parametrize("attach", [probes.attach, probes.attach_exits])
@pytest.mark.parametrize("sample", [torch.zeros(5, 4), None])
def test_a_failed_dry_run_is_one_error_that_names_the_line(attach, sample):
    with pytest.raises(ValueError, match=r"RuntimeError: shape '\[7, -1\]' is invalid") as caught:
        attach(Wrong(), ["one", "two"], sample=sample)
    told = "".join(traceback.format_exception(caught.value))
    assert told.count("Traceback") == 1
    assert f'File "{__file__}"' in str(caught.value)
    assert "in fold\n    return h.reshape(7, -1)" in str(caught.value)
    assert ("give an input batch as `sample`" in told) == (sample is None)
    assert isinstance(caught.value.__context__, RuntimeError)  # for a debugger


def test_an_input_that_does_not_fit_is_an_error_and_nothing_is_written_beside_it():
    """Torch writes a traceback of its own for each shape that does not fit."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)

    try:
        with pytest.raises(ValueError, match="a forward pass failed"):
            probes.attach(nn.Sequential(nn.Linear(6, 3)), "0", sample=torch.randn(2, 4))
    finally:
        logger.removeHandler(handler)
    assert not records
    assert not logger.disabled


def test_a_head_that_fails_is_one_error_that_names_the_line():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match="RuntimeError: shape") as caught:
        probes.attach_exits(model, ["0", "1"], head=Wrong().fold, sample=torch.zeros(5, 4))
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1
    assert "in fold" in str(caught.value)


def test_models_that_cannot_be_probed_are_refused():
    linear = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(ValueError, match="meta device"):
        probes.attach(nn.Linear(4, 3, device="meta"), "weight")
    with pytest.raises(ValueError, match="is lazy"):
        probes.attach(nn.Sequential(nn.LazyLinear(3)), "0")
    with pytest.raises(ValueError, match="DistributedDataParallel"):
        probes.attach(nn.DataParallel(linear), "0")
    with pytest.raises(TypeError, match=r"expected an nn\.Module, got function"):
        probes.attach(lambda x: x, "0")
    with pytest.raises(TypeError, match="expected a number, mapping or schedule, got 'big'"):
        probes.attach(linear, "0", alpha="big")
    with pytest.raises(ValueError, match="give an input batch as `sample`"):
        probes.attach(nn.Sequential(nn.Embedding(9, 4), nn.Unflatten(1, (3, 5))), "0")
    with pytest.raises(ValueError, match="num_classes=0"):
        probes.attach(timm.create_model("resnet18", num_classes=0), "layer1")
    with pytest.raises(ValueError, match=r"cannot tell from an output of shape \(6,\)"):
        probes.attach(nn.Sequential(linear, nn.Flatten(0)), "0", sample=torch.zeros(2, 4))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.zeros(4, dtype=torch.long), r"class indices \(5,\).*got shape \(4,\)"),
        (torch.zeros(5, 2), r"numbers \(5, 3\), got shape \(5, 2\)"),
        (torch.zeros(5), "of floating numbers"),
        (torch.tensor([0, 1, 2, 3, 0]), "class indices 0 to 2, got 0 to 3"),
        (torch.tensor([0, 1, 2, -100, 0]), "got -100 to 2"),
    ],
)
def test_bad_targets_are_refused_and_the_pass_is_not_lost(y, message):
    model, x = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), torch.randn(5, 4)
    probe = probes.attach(model, "0", n=2)
    model(x)
    with pytest.raises(ValueError, match=message):
        probe.loss(y)
    with pytest.raises(ValueError, match=message):
        probe.measure(y)
    assert torch.isfinite(probe.loss(torch.zeros(5, dtype=torch.long)))


def test_targets_must_be_a_tensor_and_batches_not_empty():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    probe = probes.attach(model, "0", n=2)
    model(torch.randn(2, 4))
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        probe.loss([0, 1])
    model(torch.randn(0, 4))
    with pytest.raises(ValueError, match="empty batch"):
        probe.loss(torch.zeros(0, dtype=torch.long))


def test_losses_that_are_not_scalars_and_targets_that_train_are_refused():
    model, x, y = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4), torch.tensor([0, 1])
    probe = probes.attach(model, "0", n=2, loss=nn.CrossEntropyLoss(reduction="none"))
    model(x)
    with pytest.raises(ValueError, match=r"`loss`: expected a scalar, got shape \(2,\)"):
        probe.loss(y)
    probe = probes.attach(model, "0", n=2)
    model(x)
    with pytest.raises(ValueError, match="targets without gradient"):
        probe.loss(torch.rand(2, 3, requires_grad=True))


def test_a_layer_of_vectors_that_yields_positions_is_told():
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    probe = probes.attach(model, "0", n=2)
    model(torch.randn(2, 5, 4))
    with pytest.raises(RuntimeError, match=r"'0' gave more axes than .* as `sample`"):
        probe.loss(torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match=r"'0' gave more axes than .* as `sample`"):
        probe.evaluate((torch.randn(2, 5, 4), torch.tensor([0, 1])))

    # The cure: the layer is pooled over its positions.
    x, y = torch.randn(2, 5, 4), torch.tensor([0, 1])
    cured = probes.attach(model, "0", n=2, sample=x)
    model(x)
    expected = layer_loss(model[0](x).mean(1), weights_of(cured, "0"), y, "bce")
    torch.testing.assert_close(cured.loss(y), expected)
