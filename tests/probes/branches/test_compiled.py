"""Rows 1-6 of the table of traps for hooks: compiled models, whatever was compiled before."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel

import probes
from tests.helpers.probe_reference import layer_loss, weights_of
from tests.helpers.probe_stages import LAYERS, assert_exact, make

# Torch's own, probe or not, when code is compiled for an input inside a graph.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture
def clean_dynamo():
    """As in a fresh process: no compiled code, and torch's own default for checks of hooks."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        yield torch._dynamo.utils.counters
    torch._dynamo.reset()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_row_1_compiled_after_attaching_is_exact_and_one_graph(backend, wrapped, clean_dynamo):
    model, x, y = make()
    if wrapped:
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        probe = probes.attach(compiled, LAYERS, n=3)
    else:
        probe = probes.attach(model, LAYERS, n=3)
        compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(3):
        assert_exact(compiled, model, probe, x, y)
    assert clean_dynamo["stats"]["unique_graphs"] == 1
    assert not clean_dynamo["graph_break"]


def test_row_1_compiled_model_in_eval_mode_has_no_probe(clean_dynamo):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(x)
    model.eval()
    compiled(x)
    with pytest.raises(RuntimeError, match="eval mode"):
        probe.loss(y)


def whole(model):
    return torch.compile(model, backend="aot_eager")


def in_place(model):
    model.compile(backend="aot_eager")
    return model


def submodules(model):
    for name in LAYERS:
        model.get_submodule(name).compile(backend="aot_eager")
    return model


def wrapped_submodules(model):
    for name in LAYERS:
        setattr(model, name, torch.compile(model.get_submodule(name), backend="aot_eager"))
    return model


def function(model):
    return torch.compile(lambda x: model(x), backend="aot_eager")


WAYS = [whole, in_place, submodules, wrapped_submodules, function]


def expected_loss(model, probe, x, y):
    first = F.linear(x, *_weights(model.first))
    second = F.linear(first.relu(), *_weights(model.second))
    parts = zip(LAYERS, (first, second), strict=True)
    return sum(layer_loss(h, weights_of(probe, k), y, "bce") for k, h in parts)


def _weights(layer):
    return getattr(layer, "_orig_mod", layer).parameters()


@pytest.mark.parametrize("way", WAYS)
def test_row_2_attached_after_a_compiled_call(way, clean_dynamo):
    model, x, y = make()
    call = way(model)
    call(x)
    probe = probes.attach(model, LAYERS, n=3)
    call(x)
    torch.testing.assert_close(probe.loss(y), expected_loss(model, probe, x, y))


@pytest.mark.parametrize("way", WAYS)
def test_row_2_a_compiled_call_is_never_mistaken_for_an_older_pass(way, clean_dynamo):
    model, x, y = make()
    call = way(model)
    call(x)
    probe = probes.attach(model, LAYERS, n=3)
    with torch.compiler.set_stance("force_eager"):
        model(x)
    call(3 * x)
    measured = probe.measure(y)["loss"].sum().item()
    found, expected = probe.loss(y), expected_loss(model, probe, 3 * x, y)
    torch.testing.assert_close(found, expected)
    assert measured == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_row_2_code_compiled_for_a_plain_twin_is_not_reused(way, clean_dynamo):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    way(make()[0])(x)
    model(x)
    way(model)(3 * x)
    torch.testing.assert_close(probe.loss(y), expected_loss(model, probe, 3 * x, y))


def test_row_2_twins_with_probes_of_their_own(clean_dynamo):
    pairs = []
    for seed in (1, 2):
        model, x, y = make()
        probe = probes.attach(model, LAYERS, n=3, seed=seed)
        pairs.append((model, probe, whole(model)))
    for factor, (_, _, call) in enumerate(pairs, start=1):
        call(factor * x)
    for factor, (model, probe, _) in enumerate(pairs, start=1):
        expected = expected_loss(model, probe, factor * x, y)
        torch.testing.assert_close(probe.loss(y), expected)


def test_row_2_reattached_to_a_model_compiled_without_it(clean_dynamo):
    model, x, y = make()
    compiled = whole(model)
    probe = probes.attach(model, LAYERS, n=3)
    assert_exact(compiled, model, probe, x, y)
    probe.detach()
    compiled(x)
    probe.reattach(model)
    model(x)
    assert_exact(compiled, model, probe, x, y)


def test_row_2_compiled_code_is_kept_when_it_looks_for_hooks(clean_dynamo):
    probes.attach(make()[0], LAYERS, n=3)
    other = nn.Linear(2, 2)
    compiled = torch.compile(other, backend="aot_eager")
    compiled(torch.ones(1, 2))
    probes.attach(make()[0], LAYERS, n=3)
    compiled(torch.ones(1, 2))
    assert clean_dynamo["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(
    not hasattr(torch.compiler, "skip_guard_on_all_nn_modules_unsafe"),
    reason="this torch cannot be told so",
)
def test_row_2_code_that_was_told_to_ignore_hooks_gives_no_loss(clean_dynamo):
    model, x, y = make()
    unsafe = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    compiled = torch.compile(model, backend="aot_eager", options=unsafe)
    probes.attach(make()[0], LAYERS, n=3)
    compiled(x)
    probe = probes.attach(compiled, LAYERS, n=3)
    compiled(x)
    with pytest.raises(RuntimeError, match="attach first"):
        probe.loss(y)
    with torch.compiler.set_stance("force_eager"):
        assert_exact(compiled, model, probe, x, y)
    torch.compiler.reset()
    assert_exact(compiled, model, probe, x, y)


def test_a_whole_compiled_step_is_compiled_once_whatever_the_schedule(clean_dynamo):
    model, x, y = make()
    alpha = probes.schedules.linear(1.0, 0.0, steps=10)
    probe = probes.attach(model, LAYERS, n=3, alpha=alpha)

    @torch.compile(backend="aot_eager")
    def step(x, y):
        return F.cross_entropy(model(x), y) + probe.loss(y)

    graphs = []
    for index in range(4):
        found = step(x, y)
        main = F.cross_entropy(model(x), y)
        auxiliary = (1 - index / 10) * expected_loss(model, probe, x, y)
        torch.testing.assert_close(found, main + auxiliary)
        graphs.append(clean_dynamo["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1


def test_row_3_detaching_from_a_compiled_model(clean_dynamo):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    compiled = torch.compile(model, backend="aot_eager")
    with_probe = compiled(x)
    probe.detach()
    assert torch.equal(compiled(x), with_probe)
    with pytest.raises(RuntimeError, match="this is detached"):
        probe.loss(y)


def test_row_4_the_model_is_still_compiled_as_a_whole(clean_dynamo):
    model, x, _ = make()
    probe = probes.attach(model, LAYERS, n=3)
    torch.compile(model, backend="aot_eager", fullgraph=True)(x)  # a break would raise
    assert clean_dynamo["stats"]["calls_captured"] >= 5
    assert probe.attached


@pytest.mark.parametrize("wrap", [torch.compile, AveragedModel])
def test_row_5_wrappers_do_not_hide_names(wrap):
    model, x, y = make()
    wrapped = wrap(model)
    probe = probes.attach(wrapped, ["fi*", "second"], n=3)
    assert probe.layers == LAYERS
    inner = wrapped.module if isinstance(wrapped, AveragedModel) else model
    assert_exact(inner, inner, probe, x, y)


def test_row_5_a_layer_may_itself_be_called_module():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(4, 3)

        def forward(self, x):
            return self.module(x)

    assert probes.attach(Odd(), "module", n=2).layers == ["module"]


def test_row_6_a_compiled_sequential_has_no_truth_value(clean_dynamo):
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 3)), backend="aot_eager")
    assert probes.attach(compiled, "0", n=2).layers == ["0"]
