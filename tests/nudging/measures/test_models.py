"""Models that keep books, drop activations or bring hooks are measured right, and left alone."""

import warnings

import numpy as np
import pytest
import timm
import torch
import xarray as xr
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from tests.helpers.state import snapshot

BLOCKS = ["embed", "blocks.*"]


class Counting(nets.ResMLP):
    """Its buffers change in every pass, in place and by assignment, and have a say."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.ones(()))
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x):
        self.calls *= 2
        self.mean = 0.9 * self.mean + x.mean(0).detach()
        return super().forward(x) * self.calls


class Doubled(nets.ResMLP):
    """What the first pass of `Counting` computes."""

    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_every_pass_finds_the_buffers_as_they_were(dtype):
    found = [
        nudging.nudge(
            nets.make(build),
            nets.batch(),
            nudging.backprop,
            BLOCKS,
            samples=None,
            dtype=dtype,
            batch_size=4,
        )
        for build in (Counting, Doubled)
    ]
    xr.testing.assert_equal(*found)


def test_observing_and_fitting_leave_buffers_alone():
    model, (x, y) = nets.make(Counting), nets.batch()
    before = snapshot(model)
    state = nudging.observe(model, x, y, BLOCKS)
    state.replay("embed", state.hidden["embed"])
    state.gradient()
    assert snapshot(model) == before
    nudging.StateBridge(hidden=8).fit(model, (x, y), BLOCKS, epochs=1)
    nudging.CreditBridge(hidden=8).fit(model, (x, y), BLOCKS, epochs=1)
    assert snapshot(model) == before


def test_timm_may_checkpoint_its_activations():
    def vit(*, checkpointing):
        model = nets.make(
            lambda: timm.models.VisionTransformer(
                img_size=8,
                patch_size=4,
                num_classes=5,
                embed_dim=8,
                depth=3,
                num_heads=2,
                proj_drop_rate=0.5,
            )
        )
        model.set_grad_checkpointing(checkpointing)
        return model

    data, saving = nets.batch(4, (3, 8, 8)), vit(checkpointing=True)
    found = [
        nudging.measure(model, data, nudging.backprop, "blocks.*", samples=None, n_directions=2)
        for model in (saving, vit(checkpointing=False))
    ]
    assert found[0].equals(found[1])
    assert saving.grad_checkpointing


def test_dropped_activations_are_computed_again_in_eval_mode():
    class Noise(nn.Module):
        def forward(self, h):
            return torch.tanh(h + torch.rand_like(h) if self.training else h)

    class Saving(nets.ResMLP):
        def __init__(self, saving):
            super().__init__()
            self.noise, self.saving = Noise(), saving

        def forward(self, x):
            h = self.embed(x)
            for block in self.blocks:
                h = self.part(block, h)
            return self.head(self.norm(h))

        def part(self, block, h):
            if not self.saving:
                return block(self.noise(h))
            # Not blocks themselves, whose hooks are gone by the time of the backward pass.
            return block(torch.utils.checkpoint.checkpoint(self.noise, h, use_reentrant=False))

    gradients = [
        nudging.observe(nets.make(lambda s=s: Saving(s)), *nets.batch(), BLOCKS).gradient()
        for s in (True, False)
    ]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


def test_scripted_parts_run_every_time():
    class Scripted(nn.Module):
        def __init__(self, script):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 5)
            self.norm = script(nn.BatchNorm1d(8))

        def forward(self, x):
            return self.head(self.two(self.norm(self.one(x))))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its script outdated
        models = [nets.make(lambda s=s: Scripted(s)) for s in (torch.jit.script, nn.Identity)]
        before = snapshot(models[0])
        models[1].norm = nn.BatchNorm1d(8)
        found = [
            nudging.nudge(m, nets.batch(), nudging.backprop, ["one", "two"], samples=None)
            for m in models
        ]
    xr.testing.assert_allclose(*found)
    assert snapshot(models[0]) == before


def test_hooks_that_change_what_a_block_takes_and_gives_are_part_of_the_model():
    class Inside(nets.ResMLP):
        def forward(self, x):
            h = self.embed(x)
            for i, block in enumerate(self.blocks):
                h = block(1.5 * h) if i == 2 else block(h)
            return self.head(self.norm(h))

    model, data = nets.make(nets.ResMLP), nets.batch()
    model.blocks[2].register_forward_pre_hook(lambda _module, args: (1.5 * args[0],))
    found = nudging.measure(model, data, nudging.backprop, BLOCKS, samples=None, n_directions=2)
    want = nudging.measure(
        nets.make(Inside), data, nudging.backprop, BLOCKS, samples=None, n_directions=2
    )
    xr.testing.assert_allclose(found, want)
    model.blocks[1].register_forward_hook(lambda _module, _args, output: 2 * output)
    state = nudging.observe(model, *data, BLOCKS)
    twin = nudging.auxiliary(nn.functional.cross_entropy)(state)  # the gradient by another way
    for name, gradient in state.gradient().items():
        torch.testing.assert_close(twin[name], gradient)
    small = nudging.nudge(model, data, nudging.backprop, BLOCKS, samples=None, eta=1e-3)
    np.testing.assert_allclose(small["loss_change"], small["predicted_change"], rtol=0.01)


def test_ignored_tokens_are_not_in_the_mean():
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7)

        def forward(self, tokens):
            return self.head(self.embed(tokens)).mT

    tokens = torch.randint(0, 7, (4, 9), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[:, 5:], targets[0, 2:] = -100, -100
    model = nets.make(Text)
    for loss in (nn.CrossEntropyLoss(), nn.functional.cross_entropy):
        found = nudging.observe(model, tokens, targets, "embed", loss=loss).losses()
        for i, value in enumerate(found):
            alone = nn.functional.cross_entropy(model(tokens[i : i + 1]), targets[i : i + 1])
            torch.testing.assert_close(value, alone.detach())
