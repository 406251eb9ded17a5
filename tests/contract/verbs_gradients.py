"""The verbs of `gradients`, for the contract suite."""

import tempfile
from pathlib import Path

import torch.nn.functional as F

import gradients
from resonance_toolkit import devices_of, preserving_rng, seed_generators


def _losses(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits, y), logits.square().mean(), logits.sin().mean()


def _trace(model, data, every=2, train=None, **options):
    """Training changes a model on purpose: what the trace adds must not stay."""
    x, y = data
    grads = {p: p.grad for p in model.parameters()}
    try:
        for p in model.parameters():
            p.grad = None
        with preserving_rng(devices_of(model)), gradients.Trace(model, every, **options) as trace:
            seed_generators(0, devices_of(model))
            (train or _train)(trace, model, x, y)
        return trace.to_dataset()
    finally:
        for p, grad in grads.items():
            p.grad = grad


def _accumulate(trace, model, x, y):
    """Two updates of two micro-batches each."""
    for index in range(4):
        half = slice(index % 2, None, 2)
        losses = _losses(model, x[half], y[half])[:2]
        trace.backward(*(loss / 2 for loss in losses), update=index % 2 == 1)


def _train(trace, model, x, y):
    for _ in range(3):
        trace.backward(*_losses(model, x, y)[:2])


def _activation(model, data):
    return _trace(model, data, level="activation", layers="head")


def _read(model, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        _trace(model, data, path=path)
        return gradients.read_trace(path)


VERBS = {
    "gradients.Trace": _trace,
    "gradients.Trace (activation)": _activation,
    "gradients.compare": lambda model, data: gradients.compare(
        model, lambda: _losses(model, *data)[:2]
    ),
    "gradients.compare (three)": lambda model, data: gradients.compare(
        model, lambda: dict(zip("abc", _losses(model, *data), strict=True))
    ),
    "gradients.initial_norm": lambda model, data: gradients.initial_norm(
        model, data, 100, samples=20, batch_size=8
    ),
    "gradients.noise": lambda model, data: gradients.noise(
        model, data, lambda x, y: _losses(model, x, y)[:2], samples=20, batch_size=5, resamples=20
    ),
    "gradients.noise_scale": lambda model, data: gradients.noise_scale(
        _trace(model, data, every=1, train=_accumulate, noise=True), batch_size=12, resamples=20
    ),
    "gradients.read_trace": _read,
    "gradients.regroup": lambda model, data: gradients.regroup(
        _trace(model, data), {"early": ["stem", "norm"], "late": ["blocks", "head"]}
    ),
    "gradients.reweight": lambda model, data: gradients.reweight(_trace(model, data), "mean"),
    "gradients.reweight (layer)": lambda model, data: gradients.reweight(
        _trace(model, data), lambda gramian: gramian.diagonal() ** -0.5, by="layer"
    ),
    "gradients.summarise": lambda model, data: gradients.summarise(_trace(model, data)),
}
