"""How often the host waits for the device: never in a training step, once for what is read."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradients
import landscape
import nudging
import probes
from tests.accelerator.simulated import DEVICE, counting_waits

LAYERS = ["0", "2"]


def make_model(seed=0):
    torch.manual_seed(seed)
    widths = [(6, 8), (8, 8), (8, 4)]
    layers = [layer for sizes in widths for layer in (nn.Linear(*sizes), nn.ReLU())]
    return nn.Sequential(*layers[:-1]).to(DEVICE)


def make_data(n_samples=24):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_samples, 6, generator=generator)
    return x.to(DEVICE), (torch.arange(n_samples) % 4).to(DEVICE)


PROBES = {
    "exact": {},
    "cross entropy": {"loss": "ce"},
    "compressed": {"method": "compressed"},
    "active": {"active": 2},
    "ramp": {"alpha": probes.schedules.linear(0.0, 0.5, steps=10)},
    "balance": {"alpha": probes.schedules.balance(0.5)},
    "gate": {"alpha": probes.schedules.gate(0.5)},
    "listening": {"n": 1, "listen_only": True},
}


@pytest.mark.parametrize("name", PROBES)
def test_a_training_step_with_a_probe_never_waits(name):
    model = make_model()
    probe = probes.attach(model, LAYERS, **{"n": 3} | PROBES[name])
    optimizer = torch.optim.SGD([*model.parameters(), *probe.parameters()], lr=0.1)
    x, y = make_data()

    def step():
        optimizer.zero_grad()
        main = F.cross_entropy(model(x), y)
        is_adaptive = isinstance(probe.strength, probes.schedules.Adaptive)
        (main + probe.loss(y, **({"main": main} if is_adaptive else {}))).backward()
        optimizer.step()

    step()  # what stays on the device is sent there once
    _assert_never_waits(step)


TRACES = {
    "parameter": {},
    "activation": {"level": "activation", "layers": "4"},
    "noise": {"noise": True},
    "separate": {"separate": True},
}


@pytest.mark.parametrize("name", TRACES)
def test_a_training_step_with_a_trace_never_waits(name):
    model = make_model()
    x, y = make_data()

    with gradients.Trace(model, every=1, **TRACES[name]) as trace:

        def step():
            for half in (slice(0, 12), slice(12, None)):
                logits = model(x[half])
                losses = F.cross_entropy(logits, y[half]), logits.square().mean()
                trace.backward(*losses, update=half.stop is None)

        step()
        _assert_never_waits(step)

        with counting_waits() as waits:
            trace.to_dataset()
        assert waits.by_kind["to_host"] <= 1, waits


@pytest.mark.parametrize("head", ["own", "model", "tuned"])
def test_a_training_step_with_exits_never_waits(head):
    model = make_model()
    x, y = make_data()
    with probes.attach_exits(model, LAYERS, head=head, sample=x) as exits:

        def step():
            model(x)
            (exits.divergence() if head == "tuned" else exits.loss(y)).backward()

        step()
        _assert_never_waits(step)


@pytest.mark.parametrize("method", ["exact", "adaptive"])
def test_a_landscape_waits_once_a_point(method):
    model, data = make_model(), make_data()
    ignored = data[0], data[1].masked_fill(data[1] == 1, -100)

    def count(size, samples):
        with counting_waits() as waits:
            surface = landscape.grid(model, samples, size=size, method=method, samples=None)
        evaluated = surface["evaluated"].sum() if "evaluated" in surface else size**2
        return waits, int(evaluated)

    for samples in (data, ignored):
        (few, n_few), (many, n_many) = (count(size, samples) for size in (5, 9))
        assert many.total - few.total <= n_many - n_few, f"{few}\n{many}"


def test_critical_sharpness_waits_once_an_evaluation():
    model, data = make_model(), make_data()

    def count(max_evaluations):
        with counting_waits() as waits:
            measured = landscape.critical_sharpness(
                model, data, tolerance=1e-4, max_evaluations=max_evaluations
            )
        return waits, int(measured["n_evaluations"].item())

    (few, n_few), (many, n_many) = count(3), count(9)
    assert n_many > n_few
    assert many.total - few.total <= n_many - n_few, f"{few}\n{many}"


def test_similarity_is_copied_once_a_batch():
    model = make_model()
    other = {name: 1.1 * tensor for name, tensor in model.state_dict().items()}

    def count(n_batches):
        with counting_waits() as waits:
            data = make_data(12 * n_batches)
            probes.similarity(model, other, data, layers=LAYERS, batch_size=12, samples=None)
        return waits

    few, many = count(2), count(5)
    assert many.by_kind["to_host"] - few.by_kind["to_host"] <= 3, f"{few}\n{many}"


def test_nudging_copies_once_a_batch():
    model = make_model()

    def count(n_batches):
        data = make_data(12 * n_batches)
        with counting_waits() as waits:
            nudging.nudge(model, data, nudging.backprop(), LAYERS, batch_size=12, samples=None)
        return waits

    few, many = count(2), count(5)
    assert many.by_kind["to_host"] - few.by_kind["to_host"] <= 3, f"{few}\n{many}"
    # Do all targets count? Are all losses numbers? One look each.
    assert many.total - few.total <= 9, f"{few}\n{many}"


def test_measures_of_all_kinds_copy_once_a_batch_beside_random_directions():
    model = make_model()

    def count(n_batches):
        data = make_data(12 * n_batches)
        with counting_waits() as waits:
            nudging.measure(
                model,
                data,
                nudging.backprop(),
                LAYERS,
                batch_size=12,
                samples=None,
                n_directions=3,
                dtype=None,
            )
        return waits

    few, many = count(2), count(5)
    assert many.by_kind["to_host"] - few.by_kind["to_host"] <= 3, f"{few}\n{many}"


def test_measuring_branches_copies_their_numbers_once():
    model = make_model()
    probe = probes.attach(model, LAYERS, n=20)
    x, y = make_data()
    model(x)
    with counting_waits() as waits:
        probe.measure(y)

    # The numbers, and how far the branches are from orthogonal, layer by layer.
    assert waits.by_kind["to_host"] <= 2 * len(LAYERS), waits
    assert not waits.by_kind["to_device"], waits


def test_a_bridge_sends_nothing_to_the_device_but_the_order_of_the_samples():
    model, data = make_model(), make_data()

    def count(epochs):
        bridge = nudging.StateBridge(hidden=8)
        with counting_waits() as waits:
            bridge.fit(model, data, LAYERS, epochs=epochs, batch_size=12)
        return waits

    few, many = count(1), count(3)
    n_steps = 2 * 2
    n_sent = many.by_kind["to_device"] - few.by_kind["to_device"]
    assert n_sent <= 2 * n_steps, f"{few}\n{many}"


def _assert_never_waits(step: Callable[[], None]) -> None:
    with counting_waits() as waits:
        step()
    assert waits.total == 0, str(waits)
