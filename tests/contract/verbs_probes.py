"""The verbs of `probes`, for the contract suite."""

import torch.nn.functional as F

import probes
from resonance_toolkit import evaluating, preserving
from tests.helpers.decoders import decoding

LAYERS = ["norm", "blocks.*"]


def _measure(model, data):
    x, y = data
    with probes.attach(model, LAYERS, n=3, sample=x) as probe:
        with preserving(model), evaluating(model), probe.listening():  # eval: no dropout
            main = F.cross_entropy(model(x), y)
            (main + probe.loss(y)).backward()
        return probe.measure(y)


def _evaluate(model, data):
    with probes.attach(model, LAYERS, n=3, sample=data[0]) as probe:
        return probe.evaluate(data, samples=20, batch_size=9)


def _evaluate_positions(model, data):
    """Pixels at a feature map, -100 among them."""
    x, y = data
    pixels = (x.sum(1).abs() * 3).long() % 4
    pixels[y == 0] = -100
    with probes.attach(model, ["stem", "norm"], n=3, pool="spatial", sample=x) as probe:
        return probe.evaluate({"x": x, "labels": pixels}, batch_size=9)


def _fit(model, data):
    with probes.attach(model, LAYERS, sample=data[0], listen_only=True) as probe:
        return probe.fit(data, samples=20, batch_size=9)


def _compression_error(model, data):
    with probes.attach(model, LAYERS, n=3, sample=data[0]) as probe:
        return probe.compression_error(*data)


def _generate(model, data):
    decoder = decoding(model, data[0])
    return probes.generate(decoder, data[1][:8].view(2, 4), 6, layers="layers.0", threshold=0.5)


EXITS = ["attention", "blocks"]


def _exit_losses(model, data):
    def head(hidden):
        return model.head(hidden.mean(1))

    with probes.attach_exits(model, EXITS, head=head, sample=data[0]) as exits:
        with preserving(model), evaluating(model), exits.listening():
            model(data[0])
            exits.loss(data[1]).backward()
        return exits.measure()


def _exit_divergence(model, data):
    def head(hidden):
        return model.head(hidden.mean(1))

    with probes.attach_exits(model, EXITS, head=head, sample=data[0]) as exits:
        with preserving(model), evaluating(model), exits.listening():
            model(data[0])
            exits.divergence().backward()
        return exits.measure()


def _record(model, data):
    def head(hidden):
        return model.head(hidden.mean(1))

    return probes.record_exits(model, data, EXITS, head=head, batch_size=9)


def _exits(model, data):
    return probes.exits(model, data, EXITS, head=lambda h: model.head(h.mean(1)), samples=20)


VERBS = {
    "probes.measure": _measure,
    "probes.evaluate": _evaluate,
    "probes.evaluate of positions": _evaluate_positions,
    "probes.Probe.fit": _fit,
    "probes.compression_error": _compression_error,
    "probes.similarity": lambda model, data: probes.similarity(
        model, model.state_dict(), data, layers=LAYERS, batch_size=12
    ),
    "probes.generate": _generate,
    "probes.Exits.measure": _exit_losses,
    "probes.Exits.divergence": _exit_divergence,
    "probes.record_exits": _record,
    "probes.exits": _exits,
    "probes.route_exits": lambda model, data: probes.route_exits(_record(model, data)),
    "probes.exit_reliability": lambda model, data: probes.exit_reliability(_record(model, data)),
    "probes.calibrate_exits": lambda model, data: probes.calibrate_exits(
        _record(model, data), agreement=0.5
    ),
    "probes.exit_map": lambda model, data: probes.exit_map(_record(model, data), 0.5),
}
