"""What is not where the model is: states, directions, credits, masks; models in parts or moved."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import landscape
import nudging
import probes
from resonance_toolkit import device_of
from tests.accelerator.cases.cases_devices import (
    LAYERS,
    Halved,
    _moved,
    assert_same_numbers,
    make_data,
    make_model,
    make_texts,
)
from tests.accelerator.simulated import DEVICE


class HalvedText(nn.Module):
    """Tokens, with a padding mask: the first half on the CPU, the second on the device."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8).to(DEVICE)
        self.head = nn.Linear(8, 9).to(DEVICE)

    def forward(self, ids, attention_mask=None):
        hidden = self.first(self.tokens(ids)).tanh()
        return self.head(self.second(hidden.to(DEVICE)).tanh())


def _state_on_cpu(model, factor):
    return {name: tensor.cpu() for name, tensor in _moved(model, factor).items()}


def _directions_on_cpu(model):
    generator = torch.Generator().manual_seed(0)
    return tuple(
        {
            name: torch.randn(parameter.shape, generator=generator)
            for name, parameter in model.named_parameters()
            if parameter.dim() > 1
        }
        for _ in range(2)
    )


def _saved_credit(model, data, credit):
    """A credit that was saved after a first use, loaded on the CPU, and used again."""
    nudging.nudge(model, data, credit, LAYERS)
    return nudging.nudge(model, data, nudging.load_credit(credit.to_dataset()), LAYERS)


def _bent_curve(model, data):
    other = _state_on_cpu(model, 1.1)
    middle = landscape.bend(model, other, data, steps=2, batch_size=6)
    middle = {name: tensor.cpu() for name, tensor in middle.items()}
    return landscape.curve(model, other, data, middle, size=3)


WITH_PARTS_ON_CPU = {
    "landscape.line": lambda m, d: landscape.line(m, d, to=_state_on_cpu(m, 1.1), size=3),
    "landscape.plane": lambda m, d: landscape.plane(
        [m, _state_on_cpu(m, 1.1), _state_on_cpu(m, 1.2)], d, size=3
    ),
    "landscape.trajectory": lambda m, d: landscape.trajectory(
        m, [_state_on_cpu(m, 1.2), _state_on_cpu(m, 1.1), m], d, size=3
    ),
    "landscape.curve": _bent_curve,
    "landscape.grid": lambda m, d: landscape.grid(m, d, size=3, directions=_directions_on_cpu(m)),
    "landscape.critical_sharpness": lambda m, d: landscape.critical_sharpness(
        m, d, direction={name: -tensor for name, tensor in _state_on_cpu(m, 0.1).items()}
    ),
    "landscape.curvature": lambda m, d: landscape.curvature(
        m, None, matrix=_scaling_on_cpu, k=1, trace_probes=2, density_runs=0
    ),
    "probes.similarity": lambda m, d: probes.similarity(m, make_model(), d, layers=LAYERS),
    "nudging.direct_feedback": lambda m, d: _saved_credit(m, d, nudging.direct_feedback()),
    "nudging.feedback": lambda m, d: _saved_credit(m, d, nudging.feedback()),
    "nudging.StateBridge": lambda m, d: _saved_credit(m, d, _fitted(nudging.StateBridge, m, d)),
    "nudging.CreditBridge": lambda m, d: _saved_credit(m, d, _fitted(nudging.CreditBridge, m, d)),
}


def _scaling_on_cpu(vector):
    """A matrix of the user's, who works on the CPU."""
    diagonal = torch.arange(1.0, len(vector) + 1)
    return diagonal * vector.cpu()


def _fitted(bridge, model, data):
    credit = bridge(hidden=8)
    credit.fit(model, data, LAYERS, epochs=1, batch_size=6)
    return credit


@pytest.mark.parametrize("name", WITH_PARTS_ON_CPU)
def test_what_stayed_on_the_cpu_is_taken_along(name):
    verb = WITH_PARTS_ON_CPU[name]
    assert_same_numbers(verb(make_model().to(DEVICE), make_data()), verb(make_model(), make_data()))


def _train_with_probe(model, method, layers=("first", "second")):
    """Losses, gradients and measurements of one step."""
    x, y = make_data()
    x = x.to(device_of(model))
    with probes.attach(model, list(layers), n=3, method=method, sample=x) as probe:
        return _step_and_measure(model, probe, (x,), y)


def _train_on_texts(model, targets):
    ids, y = make_texts()
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[2, 2:] = 0
    ids, mask = ids.to(device_of(model)), mask.to(device_of(model))

    # Tokens have labels of their own; a text of one class is the mean over its tokens.
    y = y.masked_fill(mask.cpu() == 0, -100) if targets == "tokens" else y[:, 0]
    pool = "spatial" if targets == "tokens" else "mean"
    sample = {"ids": ids, "attention_mask": mask}
    with probes.attach(model, ["first", "second"], n=3, pool=pool, sample=sample) as probe:
        return _step_and_measure(model, probe, (ids, mask), y)


def _step_and_measure(model, probe, inputs, y):
    outputs = model(*inputs)
    loss = probe.loss(y)
    (loss + outputs.square().mean()).backward()
    measured = probe.measure(y)

    numbers = {"loss": loss.detach()} | _gradients(model)
    numbers |= {name: torch.from_numpy(measured[name].values) for name in ("loss", "accuracy")}
    if measured.attrs["method"] == "compressed":
        error = probe.compression_error(inputs[0])
        numbers["cosine"] = torch.from_numpy(error["cosine"].values)
    return numbers


def _train_with_exits(model, head):
    x, y = make_data()
    x = x.to(device_of(model))
    layers = ["first", "second"]
    with probes.attach_exits(model, layers, head=_head_of(model, head), sample=x) as exits:
        return _step_of_exits(model, exits, x, y)


def _head_of(model, head):
    if head != "given":
        return head
    return lambda hidden: model.head(hidden.to(device_of(model.head)))


def _step_of_exits(model, exits, x, y):
    loss = F.cross_entropy(model(x), y.to(DEVICE if _ends_on_device(model) else "cpu"))
    value = exits.divergence() if exits.is_tuned else exits.loss(y)
    (loss + value.to(loss.device)).backward()
    own = {f"head {i}": p.grad.cpu() for i, p in enumerate(exits.parameters())}
    return {"loss": value.detach()} | _gradients(model) | own


def _ends_on_device(model):
    return list(model.parameters())[-1].device == DEVICE


def _gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_tensors(actual, expected):
    assert set(actual) == set(expected)
    on_cpu = ({name: tensors[name].cpu() for name in expected} for tensors in (actual, expected))
    torch.testing.assert_close(*on_cpu, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_a_probe_of_a_model_over_two_devices(method):
    whole = _train_with_probe(make_model(Halved).to(DEVICE), method)
    assert_same_tensors(_train_with_probe(make_model(Halved), method), whole)


@pytest.mark.parametrize("targets", ["classes", "tokens"])
def test_a_probe_of_texts_over_two_devices(targets):
    whole = _train_on_texts(make_model(HalvedText).to(DEVICE), targets)
    assert_same_tensors(_train_on_texts(make_model(HalvedText), targets), whole)


@pytest.mark.parametrize("head", ["own", "given"])
def test_exits_of_a_model_over_two_devices(head):
    whole = _train_with_exits(make_model(Halved).to(DEVICE), head)
    assert_same_tensors(_train_with_exits(make_model(Halved), head), whole)


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_a_probe_follows_a_model_that_moves(method):
    x, y = make_data()
    expected = _train_with_probe(make_model().to(DEVICE), method, LAYERS)
    model = make_model()
    with probes.attach(model, LAYERS, n=3, method=method, sample=x) as probe:
        model.to(DEVICE)
        assert_same_tensors(_step_and_measure(model, probe, (x.to(DEVICE),), y), expected)


@pytest.mark.parametrize("head", ["own", "model", "tuned"])
def test_exits_follow_a_model_that_moves(head):
    x, y = make_data()
    results = []
    for device_at_first in (DEVICE, torch.device("cpu")):
        model = make_model().to(device_at_first)
        sample = x.to(device_at_first)
        with probes.attach_exits(model, LAYERS, head=head, sample=sample) as exits:
            model.to(DEVICE)
            exits.to(DEVICE)
            results.append(_step_of_exits(model, exits, x.to(DEVICE), y))
    assert_same_tensors(*results)


def test_class_weights_may_be_elsewhere():
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0])
    x, y = make_data()
    results = []
    for device in ("cpu", DEVICE):
        model = make_model().to(device)
        loss = nn.CrossEntropyLoss(weight.to(device))
        with probes.attach(model, LAYERS, n=2, loss=loss, sample=x.to(device)) as probe:
            results.append(probe.evaluate((x, y), batch_size=5))
    xr.testing.assert_allclose(*results, rtol=1e-4)
    assert np.isfinite(results[0]["loss"]).all()
