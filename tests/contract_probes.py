"""The verbs of `probes`, for the contract suite."""

import torch.nn.functional as F

import probes
from resonance import evaluating, preserving

LAYERS = ["norm", "blocks.*"]


def _measure(model, data):
    x, y = data
    with probes.attach(model, LAYERS, n=3, sample=x) as probe:
        with preserving(model), evaluating(model), probe.listening():  # eval: no dropout
            main = F.cross_entropy(model(x), y)
            (main + probe.loss(y)).backward()
        return probe.measure(y)


def _compression_error(model, data):
    with probes.attach(model, LAYERS, n=3, sample=data[0]) as probe:
        return probe.compression_error(*data)


VERBS = {"probes.measure": _measure, "probes.compression_error": _compression_error}
