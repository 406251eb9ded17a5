"""States under unusual circumstances: noise, in-place inputs, inference mode, compiled parts."""

import numpy as np
import pytest
import torch
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.nudging.replay.test_suffix import TOKENS, gpt2, next_token


class Noisy(nets.ResMLP):
    """Adds noise, the same to all samples or to each its own."""

    each = False

    def forward(self, x):
        return super().forward(x + torch.randn(x.shape if self.each else x.shape[1:]))


def test_random_numbers_in_a_pass_are_the_same_in_every_pass():
    model, (x, y) = nets.make(Noisy), nets.batch()
    state = nudging.observe(model, x, y, "blocks.*")
    assert torch.equal(state.replay("blocks.1", state.hidden["blocks.1"]), state.outputs)
    torch.manual_seed(99)
    assert torch.equal(nudging.observe(model, x, y, "blocks.*").outputs, state.outputs)
    model.each = True
    with pytest.raises(ValueError, match=r"a loss of each sample by itself.*random numbers"):
        nudging.observe(model, x, y, "blocks.*")


def test_a_model_that_writes_into_its_inputs_finds_them_unchanged():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(12, 8), nn.ReLU(True), nn.Linear(8, 5))
    x, y = nets.batch()
    before = x.clone()
    found = nudging.nudge(model, [(x, y)], nudging.backprop, ["1", "3"], samples=None)
    assert torch.equal(x, before)
    assert found.attrs["passes"] == "what follows each block"
    assert (found["loss_change"] < 0).all()


def test_inputs_may_be_named():
    model = nets.make(gpt2)
    named = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    found, want = (
        nudging.nudge(
            model, [(x, TOKENS)], nudging.backprop, "transformer.h.*", loss=next_token, samples=None
        )
        for x in (named, TOKENS)
    )
    np.testing.assert_allclose(found["loss_change"], want["loss_change"], rtol=1e-4)


def test_the_reference_survives_a_credit_that_writes_into_it():
    state = nudging.observe(nets.make(nets.ResMLP), *nets.batch(), "blocks.*")
    state.gradient()["blocks.0"].zero_()
    assert state.gradient()["blocks.0"].abs().sum() > 0


def test_inference_mode_does_not_matter():
    model, (x, y) = nets.make(nets.ResMLP), nets.batch()
    want = nudging.measure(model, (x, y), nudging.backprop, "blocks.*", samples=None)
    with torch.inference_mode():
        got = nudging.measure(model, (x + 0, y), nudging.backprop, "blocks.*", samples=None)
    assert want.identical(got)


@pytest.mark.parametrize(
    "how", ["whole", "in place", "blocks", "blocks in place", "blocks by method"]
)
def test_compiled_models_give_what_they_give_uncompiled(how):
    model, (x, y) = nets.make(nets.ResMLP), nets.batch()
    want = nudging.nudge(model, (x, y), nudging.backprop, "blocks.*", samples=None)
    if how == "whole":
        model = torch.compile(model, backend="eager")
    elif how == "in place":
        model.compile(backend="eager")
    for i, block in enumerate(model.blocks if how.startswith("blocks") else []):
        if how == "blocks":
            model.blocks[i] = torch.compile(block, backend="eager")
        elif how == "blocks by method":
            block.forward = torch.compile(block.forward, backend="eager")
        else:
            block.compile(backend="eager")
    with torch.no_grad():
        model(x)
    got = nudging.nudge(model, (x, y), nudging.backprop, "blocks.*", samples=None)
    assert want["loss_change"].identical(got["loss_change"])
    assert got.attrs["passes"] == "what follows each block"


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("build", [nets.ResMLP, nets.Whispering])
def test_batches_made_in_inference_mode_are_measured(build, outer):
    model, (x, y) = nets.make(build), nets.batch()
    blocks = ["blocks.*"] if build is nets.ResMLP else ["first", "second"]
    with torch.inference_mode():
        made = [(x + 0, y + 0)]
    for credit in (nudging.backprop, nudging.auxiliary(nn.functional.cross_entropy)):
        want = nudging.nudge(model, (x, y), credit, blocks, samples=None)
        with torch.inference_mode(outer):
            got = nudging.nudge(model, made, credit, blocks, samples=None)
            state = nudging.observe(model, *made[0], blocks)
            gradient = state.gradient()
        assert want.identical(got)
        for name, value in nudging.observe(model, x, y, blocks).gradient().items():
            torch.testing.assert_close(gradient[name], value)


def test_blocks_may_be_called_as_a_wrapper_calls_them():
    model, data = nets.make(nets.ResMLP), nets.batch()
    wrapped = nn.DataParallel(model)
    found = [
        nudging.nudge(net, data, nudging.backprop, name, samples=None)
        for net, name in ((model, "blocks.*"), (wrapped, "module.blocks.*"), (wrapped, "blocks.*"))
    ]
    assert found[0]["loss_change"].identical(found[1]["loss_change"])
    assert found[0]["loss_change"].identical(found[2]["loss_change"])


@pytest.mark.parametrize("make", [nudging.direct_feedback, nudging.feedback])
def test_a_loss_may_take_what_a_language_model_returns(make):
    model, credit = nets.make(gpt2), make()
    found = credit(nudging.observe(model, TOKENS, TOKENS, "transformer.h.*", loss=next_token))
    # By hand: (softmax - onehot) / 8 at the eight places that predict a token, none at the last.
    with torch.no_grad():
        error = torch.softmax(model.eval()(TOKENS).logits, 2)
    error[:, :-1] -= nn.functional.one_hot(TOKENS[:, 1:], 29)
    error[:, -1] = 0
    last = "transformer.h.2"
    expected = error / 8 @ credit.matrices[last].T
    torch.testing.assert_close(found[last], expected, rtol=1e-4, atol=1e-6)
