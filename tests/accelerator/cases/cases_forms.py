"""Forms of data, losses and options that no other case has: the same numbers as on a CPU."""

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import attention
import landscape
import nudging
import probes
import resonance
from resonance_toolkit import device_of
from tests.accelerator.cases.cases_devices import (
    LAYERS,
    LanguageModel,
    assert_same_numbers,
    make_data,
    make_model,
    make_texts,
)
from tests.accelerator.simulated import DEVICE


class Padded(nn.Module):
    """Reads texts with a padding mask; one output for each text."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids, attention_mask):
        hidden = self.second(self.first(self.tokens(ids)).tanh()).tanh()
        weights = attention_mask[..., None].to(hidden.dtype)
        return self.head((hidden * weights).sum(1) / weights.sum(1))


class Pixels(nn.Module):
    """A class for each pixel, from features of half the size."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x):
        return F.interpolate(self.head(self.stem(x).tanh()), size=x.shape[-2:])


def _shares(n_samples=12):
    generator = torch.Generator().manual_seed(2)
    x, _ = make_data(n_samples)
    return x, torch.rand(n_samples, 4, generator=generator).softmax(1)


def _padded_texts():
    ids, _ = make_texts()
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[2, 2:] = 0
    return {"ids": ids, "attention_mask": mask, "labels": torch.arange(6) % 4}


def _on_device_of(model, tensors):
    return {name: tensor.to(device_of(model)) for name, tensor in tensors.items()}


def _padded_probe(model, data, pool):
    inputs = _on_device_of(model, data)
    labels = inputs.pop("labels")
    with probes.attach(model, ["first", "second"], n=2, pool=pool, sample=inputs) as probe:
        model(**inputs)
        probe.loss(labels).backward()
        model.zero_grad()
        return probe.measure(labels)


def _pixel_probe(model, data):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 3, 8, 8, generator=generator)
    y = torch.randint(0, 4, (4, 8, 8), generator=generator)
    with probes.attach(model, ["stem"], n=2, pool="spatial") as probe:
        return probe.evaluate((x, y), batch_size=3)


def _probe_with(model, data, **options):
    x, y = data[0].to(device_of(model)), data[1]
    with probes.attach(model, LAYERS, n=2, **options) as probe:
        model(x)
        loss = probe.loss(y)
        assert loss.device == device_of(model)
        return probe.measure(y)


def _exits_with_shares(model, data):
    x, y = _shares()
    with probes.attach_exits(model, LAYERS) as exits:
        model(x.to(device_of(model)))
        exits.loss(y).backward()
        model.zero_grad()
        return exits.measure()


def _tuned_lens_of_padded(model, data):
    inputs = _on_device_of(model, data)
    inputs.pop("labels")
    with probes.attach_exits(model, ["first", "second"], head="tuned", sample=inputs) as exits:
        model(**inputs)
        exits.divergence().backward()
        model.zero_grad()
        return exits.measure()


def _operator(model, data):
    n_weights = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    diagonal = np.arange(1.0, n_weights + 1)
    operator = scipy.sparse.linalg.LinearOperator(
        (n_weights, n_weights), matvec=lambda v: diagonal * v.reshape(-1), dtype=float
    )
    return landscape.curvature(
        model, None, matrix=operator, over="*.weight", k=1, trace_probes=2, density_runs=0
    )


def _with_checkpoint(measure):
    """Measured, and read again from the file, which knows the model by its numbers."""

    def run(model, data, folder):
        measure(model, data, folder / "kept.nc")
        return measure(model, data, folder / "kept.nc")

    return run


def _weighted(model):
    return nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 3.0]))


PLAIN = {
    "landscape.grid, distributions": lambda m, d: landscape.grid(m, _shares(), size=3),
    "landscape.grid, class weights": lambda m, d: landscape.grid(
        m, d, size=3, loss=_weighted(m).to(device_of(m)), batch_size=5
    ),
    "nudging.nudge, class weights elsewhere": lambda m, d: nudging.nudge(
        m, d, nudging.backprop(), LAYERS, loss=_weighted(m).to(device_of(m)), batch_size=5
    ),
    "nudging.nudge, a loss": lambda m, d: nudging.nudge(
        m, d, nudging.backprop(), LAYERS, loss=nn.CrossEntropyLoss(reduction="none")
    ),
    "landscape.curvature, an operator": _operator,
    "landscape.curvature, equal eigenvalues": lambda m, d: landscape.curvature(
        m, None, matrix=lambda v: 2 * v, k=2, trace_probes=2, density_runs=0
    ),
    "probes.attach, not connected": lambda m, d: _probe_with(m, d, connected=False),
    "probes.attach, no sample": lambda m, d: _probe_with(m, d),
    "probes.attach, a loss": lambda m, d: _probe_with(m, d, loss=F.cross_entropy),
    "probes.attach_exits, distributions": _exits_with_shares,
}
OF_TEXTS = {
    "landscape.grid, adaptive": lambda m, d: landscape.grid(m, d, size=5, method="adaptive"),
    "landscape.curvature, gauss-newton": lambda m, d: landscape.curvature(
        m, d, k=1, matrix="gauss-newton", max_products=5, trace_probes=2, density_runs=0
    ),
    "attention.capture, some queries": lambda m, d: attention.capture(m, d[0], queries=[0, 2, -1]),
    "attention.capture, all": lambda m, d: attention.capture(m, d[0], queries="all", maps=True),
    "probes.attach_exits, no sample": lambda m, d: probes.record_exits(m, d, ["block"]),
}
OF_PADDED_TEXTS = {
    "probes.attach, mean": lambda m, d: _padded_probe(m, d, "mean"),
    "probes.attach, cls": lambda m, d: _padded_probe(m, d, "cls"),
    "probes.attach_exits, tuned": _tuned_lens_of_padded,
    "nudging.nudge, random": lambda m, d: nudging.nudge(m, d, nudging.random(), ["first"]),
    "nudging.correlation": lambda m, d: nudging.correlation(
        m, d, nudging.backprop(), ["first"], n_directions=2, dtype=None
    ),
}
KEPT = {
    "landscape.grid": _with_checkpoint(
        lambda m, d, path: landscape.grid(m, d, size=3, checkpoint=path)
    ),
    "resonance.examine": _with_checkpoint(
        lambda m, d, path: resonance.examine(
            m, d, layers=LAYERS, parts=["model", "gradients"], budget=5, seeds=1, checkpoint=path
        )["gradients"].to_dataset(inherit=False)
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_plain(name):
    _compare(PLAIN[name], make_model, make_data())


@pytest.mark.parametrize("name", OF_TEXTS)
def test_texts(name):
    _compare(OF_TEXTS[name], lambda: make_model(LanguageModel), make_texts())


@pytest.mark.parametrize("name", OF_PADDED_TEXTS)
def test_padded_texts(name):
    _compare(OF_PADDED_TEXTS[name], lambda: make_model(Padded), _padded_texts())


def test_pixels():
    _compare(_pixel_probe, lambda: make_model(Pixels), None)


@pytest.mark.parametrize("name", KEPT)
def test_kept_in_a_file(name, tmp_path):
    results = []
    for device in ("cpu", "sim"):
        folder = tmp_path / device
        folder.mkdir()
        results.append(KEPT[name](make_model().to(device), make_data(), folder))
    told_by_the_clock = [name for name in results[0] if "seconds" in name]
    _assert_equal(*(result.drop_vars(told_by_the_clock) for result in reversed(results)))


def _compare(verb, make, data):
    expected = verb(make(), data)
    actual = verb(make().to(DEVICE), data)
    _assert_equal(actual, expected)


def _assert_equal(actual, expected):
    assert isinstance(expected, xr.Dataset)
    assert_same_numbers(actual, expected)
