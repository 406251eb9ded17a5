"""What a processor cannot show: default devices, labels elsewhere, two devices, no float64."""

import itertools
from contextlib import contextmanager, nullcontext
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import xarray as xr
from torch import nn

import attention
import gradients
import landscape
import nudging
import probes
import resonance
from landscape._curvature import estimates
from resonance_toolkit import device_of, widest_float
from resonance_toolkit._front.examine import budget
from tests.accelerator.simulated import DEVICE, without_float64
from tests.helpers.decoders import Averager

LAYERS = ["0", "2"]


class Noisy(nn.Module):
    """Draws noise in eval mode, too, the same for all samples."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        hidden = self.first(x).tanh()
        return self.second(hidden + 0.1 * torch.randn_like(hidden[0]))


class Halved(nn.Module):
    """The first half on the CPU, the second on the device."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8).to(DEVICE)
        self.head = nn.Linear(8, 4).to(DEVICE)

    def forward(self, x):
        hidden = self.first(x).tanh().to(DEVICE)
        return self.head(self.second(hidden))


class LanguageModel(nn.Module):
    """Token and position embeddings, and one block."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 8)
        self.positions = nn.Embedding(16, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.block(self.tokens(ids) + self.positions(places)))


def make_model(kind=None):
    torch.manual_seed(0)
    if kind is not None:
        return kind()
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def make_data(n_samples=12):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n_samples, 6, generator=generator, device="cpu")
    return x, torch.arange(n_samples, device="cpu") % 4


def make_texts():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(9, (6, 7), generator=generator, device="cpu")
    return ids, ids.roll(-1, 1)


def _measure_branches(model, data, layers):
    with probes.attach(model, layers, n=3, sample=data[0].to(device_of(model))) as probe:
        return probe.evaluate(data, batch_size=5)


def _trace(model, data):
    with gradients.Trace(model, every=1) as trace:
        outputs = model(data[0].to(device_of(model)))
        loss = F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), _beside(outputs, data[1]))
        trace.backward(loss, outputs.square().mean())
        model.zero_grad()
        return trace.to_dataset()


def _trace_of_halves(model, data):
    """Two updates of two micro-batches each."""
    x, y = data
    with gradients.Trace(model, every=1, noise=True) as trace:
        for index in range(4):
            half = slice(index % 2, None, 2)
            outputs = model(x[half].to(device_of(model)))
            main = F.cross_entropy(outputs, _beside(outputs, y[half])) / 2
            auxiliary = outputs.square().mean() / 2
            trace.backward(main, auxiliary, update=index % 2 == 1)
        model.zero_grad()
        return trace.to_dataset()


def _beside(outputs, targets):
    return targets.to(outputs.device).reshape(-1)


def _fit(model, data, layers, method):
    sample = data[0].to(device_of(model))
    with probes.attach(model, layers, loss="ce", sample=sample, listen_only=True) as probe:
        return probe.fit(data, method=method, batch_size=5)


def _tuned_lens(model, data, layers):
    sample = data[0].to(device_of(model))
    with probes.attach_exits(model, layers, head="tuned", sample=sample) as exits:
        model(sample)
        exits.divergence().backward()
        with torch.no_grad():
            for parameter in exits.parameters():
                parameter -= 0.1 * parameter.grad
        return probes.record_exits(model, data, layers, head=exits)


def _restarted_curvature(model, data):
    """Of so small a basis that it is begun anew."""
    with mock.patch.object(estimates, "_SMALL_BASIS", 0):
        measured = landscape.curvature(
            model,
            data,
            k=1,
            memory=0,
            tolerance=1e-5,
            max_products=20,
            trace_probes=0,
            density_runs=0,
        )
    assert measured.attrs["products_eigenvalues"] > measured.attrs["basis_size"]
    return measured


def _principal_directions(model):
    path = [_moved(model, 1.2), _moved(model), model.state_dict()]
    return landscape.principal_directions(model, path, over=["*.weight", "*.bias"])


def _vectors_as_dataset(vectors):
    """One variable for each tensor of each vector."""
    return xr.Dataset(
        {
            f"{index} {name}": (f"{index} {name} number", tensor.cpu().double().flatten().numpy())
            for index, vector in enumerate(vectors)
            for name, tensor in vector.items()
        }
    )


# Of every package, the verbs that make tensors or generators of their own.
VERBS = {
    "probes.evaluate": lambda m, d, layers: _measure_branches(m, d, layers),
    "probes.record_exits": lambda m, d, layers: probes.record_exits(m, d, layers),
    "gradients.Trace": lambda m, d, layers: _trace(m, d),
    "gradients.initial_norm": lambda m, d, layers: gradients.initial_norm(m, d, batch_size=5),
    "landscape.grid": lambda m, d, layers: landscape.grid(m, d, size=3),
    "landscape.line": lambda m, d, layers: landscape.line(m, d, to=_moved(m), size=3),
    "landscape.curve": lambda m, d, layers: landscape.curve(
        m, _moved(m), d, landscape.bend(m, _moved(m), d, steps=2, batch_size=6), size=3
    ),
    "landscape.curvature": lambda m, d, layers: landscape.curvature(
        m, d, k=1, trace_probes=2, density_runs=1, density_steps=4
    ),
    "nudging.nudge": lambda m, d, layers: nudging.nudge(m, d, nudging.backprop(), layers),
    "nudging.measure": lambda m, d, layers: nudging.measure(
        m, d, nudging.random(), layers, n_directions=2, dtype=None
    ),
    "nudging.direct_feedback": lambda m, d, layers: nudging.alignment(
        m, d, nudging.direct_feedback(), layers
    ),
    "probes.Probe.fit": lambda m, d, layers: _fit(m, d, layers, "ridge"),
    "probes.Probe.fit (logistic)": lambda m, d, layers: _fit(m, d, layers, "logistic"),
    "probes.similarity": lambda m, d, layers: probes.similarity(
        m, _moved(m), d, layers=layers, batch_size=6
    ),
    "probes.attach_exits (tuned)": lambda m, d, layers: _tuned_lens(m, d, layers),
    "gradients.noise_scale": lambda m, d, layers: gradients.noise_scale(
        _trace_of_halves(m, d), batch_size=6, resamples=20
    ),
    "gradients.reweight": lambda m, d, layers: gradients.reweight(
        _trace_of_halves(m, d), lambda gramian: gramian.diagonal() ** -0.5
    ),
    "landscape.critical_sharpness": lambda m, d, layers: landscape.critical_sharpness(m, d),
    "landscape.curvature (by layer)": lambda m, d, layers: landscape.curvature(
        m, d, k=1, by="layer", max_products=8, trace_probes=2, density_runs=0
    ),
    "landscape.curvature (finite difference)": lambda m, d, layers: landscape.curvature(
        m, d, k=1, product="finite difference", max_products=4, trace_probes=0, density_runs=0
    ),
    "landscape.curvature (restarted)": lambda m, d, layers: _restarted_curvature(m, d),
    "landscape.curvature (basis on the host)": lambda m, d, layers: landscape.curvature(
        m, d, k=1, basis="host", max_products=8, trace_probes=2, density_runs=0
    ),
    "landscape.eigenvectors": lambda m, d, layers: _vectors_as_dataset(
        landscape.eigenvectors(m, d, k=1)
    ),
    "landscape.principal_directions": lambda m, d, layers: _vectors_as_dataset(
        _principal_directions(m)
    ),
}
BRIDGES = {
    "nudging.StateBridge": lambda m, d, layers: nudging.StateBridge(hidden=8).fit(
        m, d, layers, epochs=1, batch_size=5
    ),
    "nudging.CreditBridge": lambda m, d, layers: nudging.CreditBridge(hidden=8).fit(
        m, d, layers, epochs=1, batch_size=5
    ),
}


# Exits run the head on the hidden states of every layer, where these are.
NEED_ONE_DEVICE = ("probes.record_exits", "probes.attach_exits (tuned)")


def _moved(model, factor=1.1):
    """Other weights; not on one line with the model's and those of another factor."""
    return {
        name: factor ** (1 + place % 3) * tensor
        for place, (name, tensor) in enumerate(model.state_dict().items())
    }


def assert_same_numbers(actual, expected):
    xr.testing.assert_allclose(
        actual.drop_attrs(deep=True), expected.drop_attrs(deep=True), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("name", {**VERBS, **BRIDGES})
def test_a_default_device_changes_nothing(name):
    verb = {**VERBS, **BRIDGES}[name]
    expected = verb(make_model().to(DEVICE), make_data(), LAYERS)

    with DEVICE:
        model = make_model().to(DEVICE)
        model.load_state_dict(_on_cpu_made_model().state_dict())
        actual = verb(model, make_data(), LAYERS)
    assert_same_numbers(actual, expected)


def _on_cpu_made_model():
    with torch.device("cpu"):
        return make_model()


@pytest.mark.parametrize("name", [name for name in VERBS if name not in NEED_ONE_DEVICE])
def test_a_model_over_two_devices_is_measured_as_on_one(name):
    layers = ["first", "second"]
    expected = VERBS[name](make_model(Halved).to(DEVICE), make_data(), layers)
    actual = VERBS[name](make_model(Halved), make_data(), layers)
    assert_same_numbers(actual, expected)


def test_exits_of_a_model_over_two_devices_need_a_head_that_takes_hidden_states_along():
    model, data = make_model(Halved), make_data()
    with pytest.raises(ValueError, match=r"`head`.*same device"):
        probes.record_exits(model, data, ["first", "second"])

    def head(hidden):
        return model.head(hidden.to(DEVICE))

    result = probes.record_exits(model, data, ["first", "second"], head=head)
    assert result["cross_entropy"].notnull().all()


@pytest.mark.parametrize("name", [name for name in VERBS if name != "landscape.curve"])
def test_a_device_without_float64_gives_the_same_numbers(name):
    expected = VERBS[name](make_model(), make_data(), LAYERS)
    widest_float.cache_clear()
    try:
        with without_float64():
            actual = VERBS[name](make_model().to(DEVICE), make_data(), LAYERS)
    finally:
        widest_float.cache_clear()

    # What is added up in float32 has half of the digits.
    xr.testing.assert_allclose(
        actual.drop_attrs(deep=True), expected.drop_attrs(deep=True), rtol=1e-3, atol=1e-4
    )


def test_double_precision_is_refused_where_there_is_none():
    widest_float.cache_clear()
    try:
        with without_float64(), pytest.raises(ValueError, match="`dtype`: the device sim"):
            nudging.correlation(
                make_model().to(DEVICE), make_data(), nudging.backprop(), LAYERS, n_directions=2
            )
    finally:
        widest_float.cache_clear()


def _decoder(model):
    """Another language model, with the layers that `generate` asks for, where this one is."""
    torch.manual_seed(0)
    return Averager(vocabulary=9).to(device_of(model))


LANGUAGE_VERBS = {
    "gradients.initial_norm": lambda m, d: gradients.initial_norm(m, d),
    "attention.capture": lambda m, d: attention.capture(m, d[0], queries="mean"),
    "attention.sinks": lambda m, d: attention.sinks(m, d[0]),
    "landscape.grid": lambda m, d: landscape.grid(m, d, size=3),
    "probes.generate": lambda m, d: probes.generate(
        _decoder(m), d[0], 3, layers="layers.*", threshold=0.2
    ),
    "nudging.nudge": lambda m, d: nudging.nudge(m, d, nudging.backprop(), ["block"]),
}


@pytest.mark.parametrize("name", LANGUAGE_VERBS)
def test_a_language_model_gives_the_same_numbers(name):
    verb = LANGUAGE_VERBS[name]
    expected = verb(make_model(LanguageModel), make_texts())
    actual = verb(make_model(LanguageModel).to(DEVICE), make_texts())
    assert_same_numbers(actual, expected)


# Of an examination: what differs from run to run.
TOLD_BY_THE_CLOCK = ("seconds", "forward_seconds", "preparation_seconds")


@contextmanager
def _steady_clock():
    """Each look at the clock finds it a hundredth of a second later: budgets buy the same work."""
    ticks = itertools.count()
    with mock.patch.object(budget, "read_clock", side_effect=lambda: next(ticks) / 100):
        yield


def _examine(model):
    with _steady_clock():
        return resonance.examine(
            model, make_data(40), layers=LAYERS, n=2, steps=4, seeds=2, samples=20, budget=3
        )


AROUND_AN_EXAMINATION = {
    "as it is": nullcontext,
    "without float64": without_float64,
    "default device": lambda: DEVICE,
}


@pytest.mark.parametrize("name", AROUND_AN_EXAMINATION)
def test_an_examination_gives_the_same_numbers(name):
    expected = _examine(make_model())
    model = make_model().to(DEVICE)
    before = torch.get_device_module("sim").get_rng_state()

    widest_float.cache_clear()
    try:
        with AROUND_AN_EXAMINATION[name]():
            actual = _examine(model)
    finally:
        widest_float.cache_clear()

    assert torch.equal(torch.get_device_module("sim").get_rng_state(), before)
    assert actual["status"].values.tolist() == expected["status"].values.tolist()
    assert set(actual.groups) == set(expected.groups)
    for path in expected.groups:
        names = [name for name in expected[path].data_vars if name not in TOLD_BY_THE_CLOCK]
        pairs = (tree[path].to_dataset(inherit=False)[names] for tree in (actual, expected))
        assert_same_numbers(*pairs)


@pytest.mark.parametrize("name", ["landscape.grid", "landscape.curvature", "nudging.nudge"])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_noise_in_eval_mode_does_not_depend_on_the_global_seed(name, device):
    results = []
    for seed in (1, 2):
        model = make_model(Noisy).to(device)
        torch.manual_seed(seed)
        results.append(VERBS[name](model, make_data(), ["first"]))
    xr.testing.assert_identical(*results)


def test_eigenvectors_of_a_model_with_noise_do_not_depend_on_the_global_seed():
    vectors = []
    for seed in (1, 2):
        model = make_model(Noisy)
        torch.manual_seed(seed)
        vectors += landscape.eigenvectors(model, make_data(), k=1, max_products=10)
    for name in vectors[0]:
        torch.testing.assert_close(vectors[0][name], vectors[1][name], rtol=0, atol=0)


def test_the_generator_of_the_device_goes_on_as_if_no_verb_had_run():
    model = make_model().to(DEVICE)
    torch.manual_seed(3)
    expected = torch.rand(4, device=DEVICE)
    torch.manual_seed(3)
    nudging.nudge(model, make_data(), nudging.backprop(), LAYERS)
    probes.exits(model, make_data(), LAYERS)
    assert torch.equal(torch.rand(4, device=DEVICE), expected)


def test_verbs_about_a_model_on_the_cpu_leave_the_device_alone():
    model = make_model()
    state = torch.get_device_module("sim").get_rng_state()
    for name in ("gradients.initial_norm", "landscape.curve", "landscape.curvature"):
        VERBS[name](model, make_data(), LAYERS)
    assert torch.equal(torch.get_device_module("sim").get_rng_state(), state)


def test_an_adaptive_grid_takes_batches_with_and_without_ignored_targets():
    x, y = make_data()
    data = [(x[:6], y[:6]), (x[6:], y[6:].masked_fill(y[6:] == 1, -100))]
    settings = {"size": 9, "method": "adaptive", "batch_size": 4}
    expected = landscape.grid(make_model(), data, **settings)
    actual = landscape.grid(make_model().to(DEVICE), data, **settings)
    assert_same_numbers(actual, expected)


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_a_probe_takes_labels_that_stayed_on_the_cpu(method):
    model = make_model().to(DEVICE)
    probe = probes.attach(model, LAYERS, n=3, method=method)
    x, y = make_data()
    main = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
    auxiliary = probe.loss(y)
    assert auxiliary.device == DEVICE

    with gradients.Trace(model, every=1) as trace:
        trace.backward(main, auxiliary)
        assert trace.to_dataset().sizes["step"] == 1


def test_losses_on_two_devices_are_compared_as_on_one():
    model = make_model().to(DEVICE)
    x, y = (tensor.to(DEVICE) for tensor in make_data())

    def losses(device):
        logits = model(x)
        return F.cross_entropy(logits, y), logits.to(device).square().mean()

    compared = [gradients.compare(model, partial(losses, device)) for device in (DEVICE, "cpu")]
    assert_same_numbers(*compared)

    traced = []
    for device in (DEVICE, "cpu"):
        model.zero_grad()
        with gradients.Trace(model, every=1) as trace:
            trace.backward(*losses(device))
        traced.append(trace.to_dataset())
    assert_same_numbers(*traced)


def test_measuring_refuses_labels_out_of_range():
    model = make_model().to(DEVICE)
    probe = probes.attach(model, LAYERS, n=3)
    x, y = (tensor.to(DEVICE) for tensor in make_data())
    model(x)
    with pytest.raises(ValueError, match="expected class indices 0 to 3"):
        probe.measure(y + 1)
