"""The same numbers and the same training in every way that people train."""

import copy
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from small_network import TwoOutputs, gradients_of, make_batch, make_network, two_losses
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradients import Trace


def reference(model, batch, dtype=torch.float64, context=torch.enable_grad):
    """Cosine over the shared parameters, from two graphs."""
    twin = copy.deepcopy(model).to(dtype)
    x, y = batch
    found = []
    for index in (0, 1):
        with context():
            loss = two_losses(twin, x.to(dtype), y)[index]
        found.append(gradients_of(loss, twin))
    pairs = [(a, found[1][n]) for n, a in found[0].items() if None not in (a, found[1][n])]
    a, b = (torch.cat([pair[i].flatten().double() for pair in pairs]) for i in (0, 1))
    return (a @ b / a.norm() / b.norm()).item()


def test_three_losses_give_the_whole_matrix():
    model, (x, y) = make_network(dropout=0.0), make_batch()

    def losses():
        main, auxiliary = two_losses(model, x, y)
        return main, auxiliary, model.stem(x).square().mean()  # reaches the stem alone

    trace = Trace(model, objectives=["task", "side", "decay"])
    trace.backward(*losses())
    found = trace.to_dataset().isel(step=0)

    single = [gradients_of(loss, model) for loss in losses()]
    for i, name in enumerate(["task", "side", "decay"]):
        for j, other in enumerate(["task", "side", "decay"]):
            at = found.sel(objective=name, other_objective=other)
            pairs = {
                p: (single[i][p], single[j][p])
                for p in single[i]
                if single[i][p] is not None and single[j][p] is not None
            }
            for layer in found["layer"].values:
                inside = [pairs[p] for p in pairs if p.rpartition(".")[0] == layer or p == layer]
                if not inside:
                    assert np.isnan(at["inner_product"].sel(layer=layer))
                    continue
                dot = sum((a * b).sum().item() for a, b in inside)
                norm = sum(a.square().sum().item() for a, _ in inside) ** 0.5
                np.testing.assert_allclose(at["inner_product"].sel(layer=layer), dot, rtol=1e-10)
                np.testing.assert_allclose(at["norm"].sel(layer=layer), norm, rtol=1e-10)
            a, b = (torch.cat([pair[k].flatten() for pair in pairs.values()]) for k in (0, 1))
            expected = (a @ b / a.norm() / b.norm()).item()
            np.testing.assert_allclose(at["cosine_total"], expected, rtol=1e-10)


def test_one_loss_records_norms():
    model, batch = make_network(dropout=0.0), make_batch()
    trace = Trace(model)
    trace.backward(two_losses(model, *batch)[0])
    found = trace.to_dataset()
    assert set(found.data_vars) == {"norm_main", "loss_main", "grad_norm"}
    norm = model.stem[0].weight.grad.square().sum() + model.stem[0].bias.grad.square().sum()
    np.testing.assert_allclose(found["norm_main"].sel(layer="stem.0"), [norm.sqrt().item()])


def train(backward, model, *, context=None, dtype=torch.float32, after=lambda: None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    for step in range(3):
        optimizer.zero_grad()
        x, y = make_batch(seed=step, dtype=dtype)
        with context() if context else torch.enable_grad():
            losses = two_losses(model, x, y)
        backward(*losses)
        after(optimizer) if after.__code__.co_argcount else optimizer.step()
    return {k: v.clone() for k, v in model.state_dict().items()}


def assert_same_bits(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def test_autocast_and_grad_scaler():
    scaled = {}
    for traced in (False, True):
        model = make_network(dtype=torch.float32)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def step(optimizer, scaler=scaler):
            scaler.step(optimizer)
            scaler.update()

        trace = Trace(model, scaler=scaler)
        plain = lambda a, b, scaler=scaler: scaler.scale(a + b).backward()  # noqa: E731
        backward = trace.backward if traced else plain
        scaled[traced] = train(backward, model, context=autocast, after=step)
    assert_same_bits(scaled[True], scaled[False])

    model, batch = make_network(dtype=torch.float32, dropout=0.0), make_batch(dtype=torch.float32)
    expected = reference(model, batch, torch.float32, autocast)
    unscaled = Trace(model)
    unscaled.backward(*two_losses(model, *batch))
    trace = Trace(model, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12))
    with autocast():
        losses = two_losses(model, *batch)
    trace.backward(*losses)
    np.testing.assert_allclose(trace.to_dataset()["cosine_total"], expected, atol=1e-3)
    wanted = unscaled.to_dataset()["norm_aux"]
    np.testing.assert_allclose(trace.to_dataset()["norm_aux"], wanted, rtol=0.02)


def test_an_overflowing_gradient_is_nan_and_training_goes_on():
    model, batch = make_network(dtype=torch.float32), make_batch(dtype=torch.float32)
    trace = Trace(model, scaler=torch.amp.GradScaler("cpu", init_scale=1e38))
    for _ in range(2):
        trace.backward(*(1e6 * loss for loss in two_losses(model, *batch)))
    found = trace.to_dataset()
    assert found.sizes["step"] == 2
    assert np.isnan(found["cosine_total"]).all()
    assert np.isnan(found["grad_norm"]).all()
    assert np.isfinite(found["loss_main"]).all()


def test_half_precision_parameters():
    model = make_network(dtype=torch.bfloat16, dropout=0.0)
    batch = make_batch(size=64, dtype=torch.bfloat16)
    trace = Trace(model)
    main, auxiliary = two_losses(model, *batch)
    trace.backward(main, 300 * auxiliary)  # a difference of the two would be noise
    np.testing.assert_allclose(
        trace.to_dataset()["cosine_total"], reference(model, batch), atol=0.02
    )


class Checkpointed(TwoOutputs):
    reentrant, preserve_rng_state = False, True

    def forward(self, x):
        def block(x):
            return self.drop((self.stem(x) + self.token).relu())

        options = {"preserve_rng_state": self.preserve_rng_state}
        features = checkpoint(block, x, use_reentrant=self.reentrant, **options)
        return self.head(self.late(features)), self.side(features)


def make_checkpointed(dtype=torch.float64, **settings):
    torch.manual_seed(0)
    model = Checkpointed().to(dtype)
    vars(model).update(settings)
    return model


@pytest.mark.parametrize("preserve_rng_state", [True, False])
def test_checkpointing_moves_neither_batch_norm_nor_dropout(preserve_rng_state):
    states, random = [], []
    for traced in (False, True):
        model = make_checkpointed(torch.float32, preserve_rng_state=preserve_rng_state)
        backward = Trace(model).backward if traced else (lambda a, b: (a + b).backward())
        states.append(train(backward, model))
        random.append(torch.get_rng_state())
    assert_same_bits(*states)
    assert torch.equal(*random)


def test_checkpointing_gives_the_same_numbers():
    results = []
    for model in (make_network(), make_checkpointed()):
        torch.manual_seed(3)
        trace = Trace(model)
        trace.backward(*two_losses(model, *make_batch()))
        results.append(trace.to_dataset().drop_attrs(deep=False))
    xr.testing.assert_allclose(*results, rtol=1e-12)


def test_reentrant_checkpointing_is_refused():
    model = make_checkpointed(reentrant=True)
    x, y = make_batch()
    losses = two_losses(model, x.requires_grad_(), y)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        Trace(model).backward(*losses)
    assert all(p.grad is None for p in model.parameters())


@pytest.fixture
def fresh_compiler():
    import torch._functorch.config as config

    before = config.donated_buffer
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    config.donated_buffer = before


# Dynamo looks at `.grad` of what comes out of the first block.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", ["whole", "in place", "by block"])
def test_compiled_models(how, fresh_compiler):
    states = []
    for traced in (False, True):
        model = make_network(dtype=torch.float32, dropout=0.0)
        called = model
        if how == "whole":
            called = torch.compile(model, backend="aot_eager")
        elif how == "in place":
            model.compile(backend="aot_eager")
        else:
            model.stem.compile(backend="aot_eager")
            model.late.compile(backend="aot_eager")
        trace = Trace(called)
        states.append(train(trace.backward if traced else lambda a, b: (a + b).backward(), called))
    assert_same_bits(*states)

    model, batch = make_network(dtype=torch.float32, dropout=0.0), make_batch(dtype=torch.float32)
    found = trace.to_dataset().isel(step=0)
    np.testing.assert_allclose(found["cosine_total"], reference(model, batch), rtol=1e-4)
    assert np.isnan(found["cosine"].sel(layer=["late.0", "head", "side"])).all()


def test_a_framework_may_call_backward_itself():
    results = []
    for joined in (False, True):
        model = make_network()
        trace = Trace(model)
        torch.manual_seed(3)
        for index in range(4):
            losses = two_losses(model, *make_batch(seed=index))
            if joined:
                (trace.join(*losses) / 2).backward()  # as accelerate and Lightning divide
            else:
                trace.backward(*(loss / 2 for loss in losses), update=index % 2 == 1)
            if joined and index % 2:
                trace.advance()
        results.append(trace.to_dataset())
    xr.testing.assert_allclose(*results, rtol=1e-12)
    assert list(results[0]["step"]) == [0, 1]


def test_frozen_shared_and_sparse_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3, sparse=True)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)
            self.unembed = nn.Linear(3, 5, bias=False)
            self.again = nn.Linear(3, 5, bias=False)
            self.again.weight = self.unembed.weight

        def forward(self, tokens):
            hidden = self.frozen(self.embed(tokens))
            return self.unembed(hidden), self.again(hidden.tanh())

    torch.manual_seed(0)
    model, tokens = Tied().double(), torch.tensor([[0, 1, 1], [2, 4, 0]])

    def losses():
        one, two = model(tokens)
        return one.square().mean(), two.sin().mean()

    single = [gradients_of(loss, model_without_frozen(model)) for loss in losses()]
    trace = Trace(model)
    trace.backward(*losses())
    found = trace.to_dataset().isel(step=0)
    for layer, name in (("embed", "embed.weight"), ("unembed", "unembed.weight")):
        a, b = (g[name].to_dense() if g[name].is_sparse else g[name] for g in single)
        np.testing.assert_allclose(found["dot"].sel(layer=layer), (a * b).sum().item(), rtol=1e-11)
    assert np.isnan(found["dot"].sel(layer="frozen"))
    assert "again" not in found["layer"]


def model_without_frozen(model):
    class Named:
        def named_parameters(self):
            return [(n, p) for n, p in model.named_parameters() if p.requires_grad]

    return Named()


def test_a_loss_without_a_graph_is_unreached():
    model, batch = make_network(), make_batch()
    trace = Trace(model)
    trace.backward(two_losses(model, *batch)[0], torch.zeros(()).double())
    found = trace.to_dataset()
    assert np.isnan(found["cosine_total"]).all()
    assert np.isfinite(found["grad_norm"]).all()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 0}, "`every`: expected a whole number of at least 1, got 0"),
        ({"level": "neuron"}, "`level`: expected 'parameter' or 'activation', got 'neuron'"),
        ({"level": "activation"}, "`layers`: expected names of layers with level='activation'"),
        ({"layers": ["stem"]}, "`layers`: expected None"),
        ({"objectives": ["a", "a"]}, "`objectives`: expected different names"),
    ],
)
def test_bad_settings_are_named(settings, text):
    with pytest.raises(ValueError, match=text):
        Trace(make_network(), **settings)


def test_bad_losses_are_named():
    model = make_network()
    trace = Trace(model)
    main, auxiliary = two_losses(model, *make_batch())
    with pytest.raises(ValueError, match="losses: expected at least one, got 0"):
        trace.backward()
    with pytest.raises(ValueError, match=r"'auxiliary': expected a scalar tensor, got \(2,\)"):
        trace.backward(main, torch.zeros(2))
    trace.backward(main, auxiliary)
    with pytest.raises(ValueError, match=r"expected 2 \(main, auxiliary\), got 1"):
        trace.backward(main)


def test_a_model_under_trace_can_be_copied_and_pickled():
    model = make_network()
    with Trace(model, level="activation", layers="stem"):
        copy.deepcopy(model)(make_batch()[0])
        pickle.loads(pickle.dumps(model))(make_batch()[0])
