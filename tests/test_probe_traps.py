"""Rows 1-22 of the table of traps for hooks: each is run, and is either exact or refused."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from reference import layer_loss, weights_of
from state import snapshot
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import probes


class Stages(nn.Module):
    """Two linear stages with an in-place ReLU after each; either may be checkpointed."""

    def __init__(self, mode=None):
        super().__init__()
        self.first, self.act = nn.Linear(4, 6), nn.ReLU(inplace=True)
        self.second, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.mode = mode

    def stage(self, x):
        return self.act(self.second(self.act(self.first(x))))

    def forward(self, x):
        if self.mode is not None and self.training:
            x = checkpoint(self.stage, x, use_reentrant=self.mode == "reentrant")
        else:
            x = self.stage(x)
        return self.head(x)


LAYERS = ["first", "second"]


def make(mode=None):
    torch.manual_seed(0)
    return Stages(mode), torch.randn(7, 4, requires_grad=True), torch.arange(7) % 3


def expected_gradients(model, probe, x, y):
    """Without hooks: each stage by hand, its features taken before the in-place ReLU."""
    first = F.linear(x, model.first.weight, model.first.bias)
    second = F.linear(first.relu(), model.second.weight, model.second.bias)
    main = F.cross_entropy(F.linear(second.relu(), model.head.weight, model.head.bias), y)
    parts = zip(LAYERS, (first, second), strict=True)
    total = main + sum(layer_loss(h, weights_of(probe, k), y, "bce") for k, h in parts)
    return torch.autograd.grad(total, list(model.parameters()) + list(probe.parameters()))


def found_gradients(call, model, probe, x, y):
    total = F.cross_entropy(call(x), y) + probe.loss(y)
    return torch.autograd.grad(total, list(model.parameters()) + list(probe.parameters()))


def assert_exact(call, model, probe, x, y, **tolerance):
    found = found_gradients(call, model, probe, x, y)
    torch.testing.assert_close(found, expected_gradients(model, probe, x, y), **tolerance)


@pytest.fixture
def clean_dynamo():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
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


@pytest.mark.parametrize("cure", ["reset", "stance"])
def test_row_2_attached_after_a_compiled_call_refuses_then_is_cured(cure, clean_dynamo):
    model, x, y = make()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x)
    probe = probes.attach(compiled, LAYERS, n=3)
    compiled(x)
    with pytest.raises(RuntimeError, match="attach first"):
        probe.loss(y)
    if cure == "reset":
        torch._dynamo.reset()
        assert_exact(compiled, model, probe, x, y)
    else:
        with torch.compiler.set_stance("force_eager"):
            assert_exact(compiled, model, probe, x, y)


def test_row_2_a_late_compiled_call_never_reuses_an_older_pass(clean_dynamo):
    model, x, y = make()
    compiled = torch.compile(model, backend="aot_eager")
    compiled(x)
    probe = probes.attach(model, LAYERS, n=3)
    with torch.compiler.set_stance("force_eager"):
        compiled(x)
    probe.loss(y)
    compiled(x)
    with pytest.raises(RuntimeError, match=r"run the model again|attach first"):
        probe.loss(y)


def test_row_3_detaching_from_a_compiled_model(clean_dynamo):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    compiled = torch.compile(model, backend="aot_eager")
    with_probe = compiled(x)
    probe.detach()
    assert torch.equal(compiled(x), with_probe)
    with pytest.raises(RuntimeError, match="no forward pass"):
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


@pytest.mark.parametrize("early", [True, False])
def test_row_7_non_reentrant_checkpoint_is_exact_step_after_step(early):
    model, x, y = make("non-reentrant")
    probe = probes.attach(model, LAYERS, n=3)
    optimizer = torch.optim.SGD([*model.parameters(), *probe.parameters()], lr=0.1)
    with torch.utils.checkpoint.set_checkpoint_early_stop(early):
        for _ in range(3):
            expected = expected_gradients(model, probe, x, y)
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + probe.loss(y)).backward()
            found = [p.grad for p in [*model.parameters(), *probe.parameters()]]
            torch.testing.assert_close(found, list(expected))
            optimizer.step()


def test_row_8_the_checkpointed_block_itself():
    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(checkpoint(self.block, x, use_reentrant=False))

    torch.manual_seed(0)
    model, x, y = Blocks(), torch.randn(7, 4), torch.randint(0, 3, (7,))
    probe = probes.attach(model, "block", n=3)
    model(x)
    found = torch.autograd.grad(probe.loss(y), model.block.weight)
    h = F.linear(x, model.block.weight, model.block.bias)
    expected = layer_loss(h, weights_of(probe, "block"), y, "bce")
    torch.testing.assert_close(found, torch.autograd.grad(expected, model.block.weight))


def test_row_9_reentrant_checkpoint_is_refused():
    model, x, y = make("reentrant")
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        probe.loss(y)


def test_row_10_two_gradients_of_a_checkpointed_graph():
    model, x, y = make("non-reentrant")
    probe = probes.attach(model, LAYERS, n=3)
    main = F.cross_entropy(model(x), y)
    auxiliary = probe.loss(y)
    parameters = list(model.parameters())
    first = torch.autograd.grad(auxiliary, parameters, retain_graph=True, allow_unused=True)
    second = torch.autograd.grad(main, parameters)
    expected = expected_gradients(model, probe, x, y)[: len(parameters)]
    for a, b, total in zip(first, second, expected, strict=True):
        torch.testing.assert_close(b if a is None else a + b, total)


def test_row_11_in_place_operations_do_not_reach_captured_features():
    model, x, y = make()
    assert_exact(model, model, probes.attach(model, LAYERS, n=3), x, y)


@pytest.mark.parametrize("pool", ["spatial", "flatten", "cls"])
def test_row_11_whatever_the_pool(pool):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.randn(5, 3, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "0", n=2, pool=pool, sample=x)
    model(x)
    h = F.linear(x, model[0].weight, model[0].bias)
    rows = {"spatial": h.flatten(0, 1), "flatten": h.flatten(1), "cls": h[:, 0]}[pool]
    goals = y.repeat_interleave(3) if pool == "spatial" else y
    torch.testing.assert_close(
        probe.loss(y), layer_loss(rows, weights_of(probe, "0"), goals, "bce")
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_row_12_autocast_keeps_the_loss_in_float32(dtype):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    with torch.autocast("cpu", dtype=dtype):
        main = F.cross_entropy(model(x).float(), y)
        auxiliary = probe.loss(y)
    assert auxiliary.dtype == torch.float32
    found = torch.autograd.grad(main + auxiliary, list(model.parameters()))
    expected = expected_gradients(model, probe, x, y)[: len(found)]
    a, b = (torch.cat([g.flatten() for g in grads]) for grads in (found, expected))
    assert F.cosine_similarity(a, b, dim=0) > 0.9999


def test_row_12_a_bfloat16_model_has_float32_branches():
    model, x, y = make()
    model, x = model.bfloat16(), x.bfloat16()
    probe = probes.attach(model, LAYERS, n=3)
    assert {p.dtype for p in [*probe.parameters(), *probe.buffers()]} == {torch.float32}
    (F.cross_entropy(model(x).float(), y) + probe.loss(y)).backward()
    assert all(torch.isfinite(p.grad).all() for p in [*model.parameters(), *probe.parameters()])


def test_row_13_functional_call_and_func_grad():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def total(parameters):
        outputs = torch.func.functional_call(model, parameters, (x,))
        return F.cross_entropy(outputs, y) + probe.loss(y)

    found = torch.func.grad(total)(parameters)
    expected = expected_gradients(model, probe, x, y)
    for grad, want in zip(found.values(), expected, strict=False):
        torch.testing.assert_close(grad, want)


def test_row_14_vmap_is_refused_outside_and_exact_inside():
    model, x, y = make()
    x = x.detach()
    probe = probes.attach(model, LAYERS, n=3)
    parameters = {k: p.detach() for k, p in model.named_parameters()}

    def one(parameters, x, y, auxiliary):
        outputs = torch.func.functional_call(model, parameters, (x[None],))
        loss = F.cross_entropy(outputs, y[None])
        return loss + probe.loss(y[None]) if auxiliary else loss

    per_sample = torch.func.vmap(torch.func.grad(one), (None, 0, 0, None))
    per_sample(parameters, x, y, False)
    with pytest.raises(RuntimeError, match="inside the transformed function"):
        probe.loss(y)
    found = per_sample(parameters, x, y, True)
    expected = expected_gradients(model, probe, x, y)
    for grad, want in zip(found.values(), expected, strict=False):
        torch.testing.assert_close(grad.mean(0), want)


@pytest.mark.parametrize("after_forward", [False, True])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, AveragedModel, lambda m: _saved(m)])
def test_rows_15_to_17_copies_of_the_model_are_nobodys(duplicate, after_forward):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    if after_forward:
        model(x)
    other = duplicate(model)
    model(x)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    other.train()
    other(x)  # must not write into the probe
    total = F.cross_entropy(model(x), y)
    other(x)
    grads = torch.autograd.grad(total + probe.loss(y), list(model.parameters()))
    expected = expected_gradients(model, probe, x, y)[: len(grads)]
    torch.testing.assert_close(grads, expected)


def _saved(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
def test_rows_15_to_17_a_copied_probe_is_detached_and_can_be_reattached(duplicate):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.linear(1, 0, steps=10))
    model(x)
    other = duplicate(probe)
    assert probe.attached
    assert not other.attached
    with pytest.raises(RuntimeError, match="no forward pass"):
        other.loss(y)
    twin = copy.deepcopy(model)
    other.reattach(twin)
    twin(x)
    assert torch.equal(other.loss(y), probe.loss(y))


def test_row_18_state_dicts_are_separate_and_round_trip():
    model, x, y = make()
    keys = list(model.state_dict())
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.linear(1, 0, steps=10))
    assert list(model.state_dict()) == keys
    model(x)
    probe.loss(y).backward()
    with torch.no_grad():
        for p in probe.parameters():
            p += 1
    stream = io.BytesIO()
    torch.save(probe.state_dict(), stream)
    stream.seek(0)
    other = probes.attach(copy.deepcopy(model), LAYERS, n=3, seed=5)
    other.load_state_dict(torch.load(stream))
    assert other.step == 1
    for a, b in zip(probe.state_dict().items(), other.state_dict().items(), strict=True):
        assert a[0] == b[0]
        if isinstance(a[1], torch.Tensor):
            assert torch.equal(a[1], b[1])


def test_row_18_a_compressed_state_needs_its_seed():
    model, _, _ = make()
    state = probes.attach(model, LAYERS, n=3, method="compressed", seed=1).state_dict()
    with pytest.raises(ValueError, match="saved probe's 1, got 2"):
        probes.attach(model, LAYERS, n=3, method="compressed", seed=2).load_state_dict(state)


def test_row_19_an_exception_leaves_no_hook():
    model, _, _ = make()
    before = snapshot(model)
    with pytest.raises(KeyError), probes.attach(model, LAYERS, n=3):
        raise KeyError
    assert snapshot(model) == before


def test_row_19_a_collected_probe_leaves_no_hook():
    model, x, _ = make()
    before = snapshot(model)
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    del probe
    gc.collect()
    assert snapshot(model) == before


def test_detaching_lets_go_of_activations_without_the_garbage_collector():
    model, x, _ = make()
    gc.collect()
    gc.disable()
    try:
        probe = probes.attach(model, LAYERS, n=3)
        model(x)
        kept = [weakref.ref(h) for hs in probe._capture.features.values() for h in hs]
        assert len(kept) == 2
        assert all(ref() is not None for ref in kept)
        probe.detach()
        assert all(ref() is None for ref in kept)
        ref = weakref.ref(probe)
        del probe
        assert ref() is None, "a cycle keeps the probe alive"
    finally:
        gc.enable()


def test_row_20_eval_and_no_grad_capture_nothing_and_refuse():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.eval()
    model(x)
    assert not probe._capture.features
    with pytest.raises(RuntimeError, match="eval mode"):
        probe.loss(y)
    model.train()
    with torch.no_grad():
        model(x)
    assert not probe._capture.features
    with pytest.raises(RuntimeError, match="without gradients"):
        probe.loss(y)


def test_row_20_listening_measures_in_eval_mode_without_gradients():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.eval()
    with torch.no_grad(), probe.listening():
        model(x)
        loss = probe.loss(y)
    assert not loss.requires_grad
    assert probe.step == 0
    model.train()
    model(x)
    torch.testing.assert_close(loss, probe.loss(y).detach())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.shared(self.shared(x).tanh()).tanh())


@pytest.mark.parametrize("calls", ["last", "mean", "all"])
def test_row_21_a_repeated_layer(calls):
    torch.manual_seed(0)
    model, x, y = Twice(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "shared", n=2, calls=calls)
    model(x)
    one = F.linear(x, model.shared.weight, model.shared.bias)
    two = F.linear(one.tanh(), model.shared.weight, model.shared.bias)
    weights = weights_of(probe, "shared")
    expected = {
        "last": layer_loss(two, weights, y, "bce"),
        "mean": layer_loss((one + two) / 2, weights, y, "bce"),
        "all": layer_loss(one, weights, y, "bce") + layer_loss(two, weights, y, "bce"),
    }[calls]
    torch.testing.assert_close(probe.loss(y), expected)


def test_row_21_a_repeated_layer_warns_unless_told():
    model, x, y = Twice(), torch.randn(5, 4), torch.randint(0, 3, (5,))
    probe = probes.attach(model, "shared", n=2)
    model(x)
    with pytest.warns(UserWarning, match="ran 2 times"):
        probe.loss(y)


def test_row_22_the_graph_is_let_go_once_used():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    probe.loss(y)
    assert all(h.grad_fn is None for hs in probe._capture.features.values() for h in hs)
    with pytest.raises(RuntimeError, match="soft targets"):
        probe.loss(y)
    assert probe.measure(y)["loss"].shape == (2, 3)


def test_gradient_accumulation_adds_up():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    for part in (slice(0, 4), slice(4, 7)):
        weight = len(y[part]) / len(y)
        loss = F.cross_entropy(model(x[part]), y[part]) + probe.loss(y[part])
        (weight * loss).backward()
    found = [p.grad for p in [*model.parameters(), *probe.parameters()]]
    torch.testing.assert_close(found, list(expected_gradients(model, probe, x, y)))


def test_only_part_of_the_model_was_run():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    model.stage(x)
    with pytest.raises(RuntimeError, match="not a method"):
        probe.loss(y)


def test_two_probes_on_one_model_do_not_disturb_each_other():
    model, x, y = make()
    one, two = (probes.attach(model, LAYERS, n=n) for n in (2, 3))
    assert_exact(model, model, one, x, y)
    model(x)
    two.loss(y)
    one.detach()
    assert_exact(model, model, two, x, y)


def test_frozen_features_train_the_active_branch_only():
    model, x, y = make()
    model.requires_grad_(False)
    x = x.detach()
    probe = probes.attach(model, LAYERS, n=3)
    model(x)
    probe.loss(y).backward()
    assert all(p.grad is not None for p in probe.parameters())
    static = probes.attach(model, LAYERS, n=3, active=0)
    model(x)
    with pytest.raises(RuntimeError, match="train nothing"):
        static.loss(y)


@pytest.mark.parametrize("method", ["exact", "compressed"])
@pytest.mark.parametrize("alpha", [1.0, probes.schedules.balance(0.5)])
def test_branches_follow_the_model_to_another_device(method, alpha):
    """The meta device stands for an accelerator: a tensor left behind would raise."""
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, method=method, alpha=alpha)
    model.to("meta")
    x, y = x.detach().to("meta"), y.to("meta")
    main = F.cross_entropy(model(x), y)
    loss = probe.loss(y) if alpha == 1.0 else probe.loss(y, main=main)
    (main + loss).backward()
    assert loss.device.type == "meta"
    assert all(p.device.type == p.grad.device.type == "meta" for p in probe.parameters())


@pytest.mark.parametrize("outside", [False, True])
def test_row_7_a_backward_pass_between_forward_and_loss_adds_nothing(outside):
    model, x, y = make(None if outside else "non-reentrant")
    other = torch.randn(7, 4, requires_grad=True)
    call = (lambda x: checkpoint(model, x, use_reentrant=False)) if outside else model
    probe = probes.attach(model, LAYERS, n=3, calls="last")
    earlier = F.cross_entropy(call(x), y) + probe.loss(y)
    call(other)
    earlier.backward()  # recomputes x inside
    found = probe.loss(y)
    first = F.linear(other, model.first.weight, model.first.bias)
    second = F.linear(first.relu(), model.second.weight, model.second.bias)
    parts = zip(LAYERS, (first, second), strict=True)
    expected = sum(layer_loss(h, weights_of(probe, k), y, "bce") for k, h in parts)
    torch.testing.assert_close(found, expected)


def test_adaptive_strength_with_checkpointed_layers():
    model, x, y = make("non-reentrant")
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.balance(0.5))
    main = F.cross_entropy(model(x), y)
    checkpointed = probe.loss(y, main=main).item()
    model.mode = None
    main = F.cross_entropy(model(x), y)
    assert checkpointed == pytest.approx(probe.loss(y, main=main).item(), rel=1e-6)


def test_a_layer_called_after_the_pass_does_not_count():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3, calls="last")
    model(x)
    model.first(torch.randn(7, 4))
    expected = probe.loss(y)
    model(x)
    assert torch.equal(probe.loss(y), expected)


def test_a_pass_that_failed_gives_no_loss():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    with pytest.raises(RuntimeError, match="fails"), model.head.register_forward_pre_hook(_fail):
        model(x)
    with pytest.raises(RuntimeError, match="did not finish"):
        probe.loss(y)


def _fail(*_):
    raise RuntimeError("fails")


def test_listening_ends():
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=3)
    with probe.listening():
        pass
    model.eval()(x)
    with pytest.raises(RuntimeError, match="eval mode"):
        probe.loss(y)


@pytest.mark.parametrize("method", ["exact", "compressed"])
def test_row_12_branches_made_half_still_compute_in_float32(method):
    model, x, y = make()
    probe = probes.attach(model, LAYERS, n=30, method=method)
    model(x)
    expected = probe.loss(y)
    probe.half()
    model(x)
    found = probe.loss(y)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


@pytest.mark.parametrize("change", [{"n": 4}, {"init": "normal"}, {"method": "exact"}])
def test_row_18_a_compressed_state_needs_its_settings(change):
    model, _, _ = make()
    settings = {"n": 3, "method": "compressed"}
    state = probes.attach(model, LAYERS, **settings).state_dict()
    with pytest.raises((ValueError, RuntimeError), match=r"saved probe|Unexpected key"):
        probes.attach(model, LAYERS, **(settings | change)).load_state_dict(state)


def test_row_12_means_of_half_precision_maps_are_taken_in_float32():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(32, 3)).bfloat16()
    x = torch.rand(2, 1, 4, 4).bfloat16()
    probe = probes.attach(model, "0", n=1, sample=x)
    model(x)
    expected = model[0](x).float().mean((2, 3))
    torch.testing.assert_close(probe._capture.features["0"][0], expected, rtol=1e-6, atol=1e-6)
