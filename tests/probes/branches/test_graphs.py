"""Rows 7-14 of the table of traps for hooks: checkpoints, precision, transforms."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import probes
from tests.helpers.probe_reference import layer_loss, weights_of
from tests.helpers.probe_stages import LAYERS, assert_exact, expected_gradients, make


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


def test_adaptive_strength_with_checkpointed_layers():
    model, x, y = make("non-reentrant")
    probe = probes.attach(model, LAYERS, n=3, alpha=probes.schedules.balance(0.5))
    main = F.cross_entropy(model(x), y)
    checkpointed = probe.loss(y, main=main).item()
    model.mode = None
    main = F.cross_entropy(model(x), y)
    assert checkpointed == pytest.approx(probe.loss(y, main=main).item(), rel=1e-6)


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


def test_row_12_means_of_half_precision_maps_are_taken_in_float32():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(32, 3)).bfloat16()
    x = torch.rand(2, 1, 4, 4).bfloat16()
    probe = probes.attach(model, "0", n=1, sample=x)
    model(x)
    expected = model[0](x).float().mean((2, 3))
    torch.testing.assert_close(probe._capture.features["0"][0], expected, rtol=1e-6, atol=1e-6)


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
