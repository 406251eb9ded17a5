"""The verbs of `probes`, for the contract suite."""

import torch.nn.functional as F
from decoders import decoding

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


def _generate(model, data):
    decoder = decoding(model, data[0])
    return probes.generate(decoder, data[1][:8].view(2, 4), 6, layers="layers.0", threshold=0.5)


VERBS = {
    "probes.measure": _measure,
    "probes.compression_error": _compression_error,
    "probes.generate": _generate,
}
