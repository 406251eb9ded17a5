"""Exits under everything that a training run may do: exact, or refused."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import probes
from probes import weightings
from tests.helpers.exit_models import BLOCKS, by_hand, text, text_model
from tests.helpers.state import snapshot


def test_attaching_changes_nothing():
    model, (ids, _) = text_model(dropout=0.5), text()
    expected = model.eval()(ids)
    model.train()
    before = snapshot(model)
    exits = probes.attach_exits(model, BLOCKS)
    assert torch.equal(model.eval()(ids), expected)
    model.train()
    exits.detach()
    exits.detach()
    assert snapshot(model) == before
    probes.attach_exits(model, BLOCKS)
    gc.collect()
    assert snapshot(model) == before


def test_stale_and_wrong_losses_are_refused():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS)
    with pytest.raises(RuntimeError, match="no forward pass"):
        exits.loss(y)
    model(ids)
    exits.loss(y)
    with pytest.raises(RuntimeError, match="already"):
        exits.loss(y)
    model.eval()(ids)
    with pytest.raises(RuntimeError, match="eval mode"):
        exits.loss(y)
    logits = model.train()(ids)
    logits.mul_(0.5)
    with pytest.raises(RuntimeError, match="in place"):
        exits.loss(y)
    with pytest.raises(RuntimeError, match="in place"):  # and it stays refused
        exits.loss(y)


def test_a_layer_that_comes_to_run_twice_is_refused():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS, weights=(1, 0, 1))
    model.blocks[1] = model.blocks[0]
    model(ids)
    with pytest.raises(RuntimeError, match="ran 2 times"):
        exits.loss(y)


def test_measuring_without_gradients_is_no_step():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS)
    with exits.listening(), torch.no_grad():
        model.eval()(ids)
        exits.loss(y)
    assert exits.step == 0
    model.train()(ids)
    exits.loss(y)
    assert exits.step == 1


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (lambda y: y[:, :4], r"expected indices \(7, 9\)"),
        (lambda y: y.double(), "floating"),
        (lambda y: y + 11, "expected indices 0 to 10"),
        (lambda y: y.fill_(11), "expected indices 0 to 10"),
        (lambda y: y.fill_(-100), "all are -100"),
    ],
)
def test_targets_that_do_not_fit(targets, message):
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS)
    model(ids)
    with pytest.raises(ValueError, match=message):
        exits.loss(targets(y.clone()))
    exits.loss(y)  # the pass is still good


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        (["blocks.2", "blocks.0"], {}, "forward order, blocks.0, blocks.2"),
        (["blocks.0", "blocks.1"], {}, "'blocks.2' follows"),
        (["blocks.0", "head"], {}, "before the model's head"),
        (["blocks.0", "nothing"], {}, "nothing is called 'nothing'"),
        (BLOCKS, {"weights": (1, 2)}, "`weights`: expected one for each"),
        (BLOCKS, {"weights": (1, -1, 1)}, "at least 0"),
        (BLOCKS, {"weights": (1, float("nan"), 1)}, "finite"),
        (BLOCKS, {"weights": (0, 0, 0)}, "above 0"),
        (BLOCKS, {"weights": "deep"}, "standard, deep_supervision, auxiliary"),
        (BLOCKS, {"head": "other"}, "`head`"),
        (BLOCKS, {"head": nn.Linear(5, 11).double()}, "`head`: expected logits"),
        (BLOCKS, {"head": nn.Linear(6, 12).double()}, r"it gives \(2, 8, 12\)"),
        (BLOCKS, {"norm": "other"}, "`norm`"),
    ],
)
def test_arguments_that_do_not_fit_change_nothing(layers, settings, message):
    model = text_model()
    before = snapshot(model)
    with pytest.raises(ValueError, match=message):
        probes.attach_exits(model, layers, **settings)
    assert snapshot(model) == before


# What is done in place hides from the search; of the others, it knows activations only.
@pytest.mark.parametrize("function", [torch.sin, torch.sin_, torch.relu_])
def test_a_function_before_the_head_is_found_out(function):
    class Bent(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.neck = nn.Tanh(), nn.Tanh(), nn.Linear(4, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            x = self.neck(self.second(self.first(x)))
            return self.head(function(x))

    with pytest.raises(ValueError, match="cannot follow the model from 'second' > neck"):
        probes.attach_exits(Bent(), ["first", "second"], sample=torch.randn(3, 4))


def test_a_layer_that_runs_twice_is_refused():
    model = text_model()
    model.blocks[1] = model.blocks[0]
    with pytest.raises(ValueError, match="runs 2 times"):
        probes.attach_exits(model, ["blocks.0", "blocks.2"])


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    torch._dynamo.reset()
    model, (ids, y) = text_model(dtype=torch.float32), text()
    exits = probes.attach_exits(model, BLOCKS)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for _ in range(2):
        compiled(ids)
        loss = exits.loss(y)
        torch.testing.assert_close(loss, by_hand(model, ids, y, (1 / 3,) * 3))
        loss.backward()
    torch._dynamo.reset()


def test_autocast_inside_or_outside_of_the_block():
    model, (ids, y) = text_model(dtype=torch.float32), text()
    exits = probes.attach_exits(model, BLOCKS)
    losses = []
    for inside in (True, False):
        with torch.autocast("cpu", torch.bfloat16):
            model(ids)
            losses.append(exits.loss(y) if inside else None)
            expected = by_hand(model, ids, y, (1 / 3,) * 3)
        losses[-1] = losses[-1] if inside else exits.loss(y)
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=0)
    torch.testing.assert_close(losses[0], expected, rtol=1e-2, atol=0)


def test_half_precision_model_with_own_heads():
    model, (ids, y) = text_model(dtype=torch.bfloat16), text()
    exits = probes.attach_exits(model, BLOCKS, head="own")
    model(ids)
    exits.loss(y).backward()
    assert exits.heads[0].weight.grad.dtype == torch.float32


def test_checkpointed_blocks():
    model, (ids, y) = text_model(), text()
    plain = by_hand(model, ids, y, (1 / 3,) * 3)
    wanted = torch.autograd.grad(plain, list(model.parameters()))
    exits = probes.attach_exits(model, BLOCKS)
    for block in model.blocks:
        forward = block.forward
        block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)
    model(ids)
    loss = exits.loss(y)
    found = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_copies_are_detached_and_can_be_attached_to_a_copy():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS, head="own", weights=weightings.asymmetric(0.7))
    model(ids)
    expected = exits.loss(y)
    twin = copy.deepcopy(model)
    twin(ids)
    for other in (copy.deepcopy(exits), pickle.loads(pickle.dumps(exits))):
        assert not other.attached
        assert other.step == 1
        other.reattach(twin)
        twin(ids)
        torch.testing.assert_close(other.loss(y), expected, rtol=0, atol=0)


def test_state_goes_on_from_the_saved_step():
    model, (ids, y) = text_model(), text()
    exits = probes.attach_exits(model, BLOCKS, head="own", seed=1)
    model(ids)
    exits.loss(y)
    other = probes.attach_exits(model, BLOCKS, head="own", seed=2)
    other.load_state_dict(exits.state_dict())
    assert other.step == 1
    assert torch.equal(other.heads[1].weight, exits.heads[1].weight)
    with pytest.raises(ValueError, match="`layers`"):
        probes.attach_exits(model, BLOCKS[1:], head="own").load_state_dict(exits.state_dict())
