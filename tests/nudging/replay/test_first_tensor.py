"""Blocks that return more than one tensor, against the same model with its first tensor tapped."""

import copy
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import nudging
import tests.helpers.nudging_models as nets
from nudging._replay.nests import replace_first_tensor
from resonance_toolkit import call_model, logits_of, take
from tests.helpers import text_models
from tests.helpers.nudging_by_hand import first, put_first
from tests.helpers.state import snapshot
from tests.helpers.two_streams import OfTwoStreams

Pair = namedtuple("Pair", ["hidden", "note"])
CLASSES = torch.tensor([0, 1, 2, 1])


class Tapped(nn.Module):
    """A block whose first tensor passes through a module of its own, which returns nothing else."""

    def __init__(self, block):
        super().__init__()
        self.block, self.tap = block, nn.Identity()

    def __getattr__(self, name):
        # A model may ask its block for an attribute.
        own_modules = self.__dict__["_modules"]
        return own_modules[name] if name in own_modules else getattr(own_modules["block"], name)

    def forward(self, *args, **kwargs):
        output = self.block(*args, **kwargs)
        return put_first(output, self.tap(first(output)))


class Chain(nn.Module):
    """Blocks that return what `form` makes of a hidden state and a note, both of which are used."""

    def __init__(self, form):
        super().__init__()
        self.form = form
        self.blocks = nn.ModuleList(Link(form) for _ in range(3))
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        notes = 0.0
        for block in self.blocks:
            x, note = block(x)
            notes = notes + note
        return self.head(x * notes.tanh())


class Link(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.layer = form, nn.Linear(12, 12)

    def forward(self, x):
        hidden = self.layer(x).tanh()
        return self.form([x + hidden, hidden.sum(1, keepdim=True)])


class Recurrent(nn.Module):
    """Reads the outputs of a recurrent layer, and its last state."""

    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(3, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        outputs, states = self.rnn(x)
        last = states[0] if isinstance(states, tuple) else states
        return self.head(outputs.mean(1) + last[-1])


def hrnet():
    return timm.create_model("hrnet_w18_small", num_classes=3)


def mvit():
    config = torchvision.models.video.mvit.MSBlockConfig(
        num_heads=1,
        input_channels=8,
        output_channels=8,
        kernel_q=[],
        kernel_kv=[],
        stride_q=[],
        stride_kv=[],
    )
    return torchvision.models.video.MViT(
        spatial_size=(16, 16),
        temporal_size=4,
        block_setting=[config, config],
        residual_pool=False,
        residual_with_cls_embed=False,
        rel_pos_embed=False,
        proj_after_attn=False,
        num_classes=3,
    )


def swin():
    config = transformers.SwinConfig(
        image_size=16,
        patch_size=2,
        embed_dim=4,
        depths=[1, 1],
        num_heads=[1, 2],
        window_size=4,
        num_labels=3,
    )
    return transformers.SwinForImageClassification(config)


def images(*shape):
    return nets.batch(4, shape, classes=3, dtype=torch.float64)


def t5_batch():
    texts = text_models.texts(2)
    return {**texts, "labels": texts["input_ids"].masked_fill(texts["attention_mask"] == 0, -100)}


ZOO = {
    "tuple": (lambda: Chain(tuple), images(12), [f"blocks.{i}" for i in range(3)]),
    "list": (lambda: Chain(list), images(12), [f"blocks.{i}" for i in range(3)]),
    "lstm": (lambda: Recurrent(nn.LSTM), images(5, 3), ["rnn"]),
    "gru": (lambda: Recurrent(nn.GRU), images(5, 3), ["rnn"]),
    "t5": (
        text_models.t5,
        t5_batch(),
        [f"{side}.block.{i}" for side in ("encoder", "decoder") for i in (0, 1)],
    ),
    "mvit": (mvit, images(3, 4, 16, 16), ["blocks.0", "blocks.1"]),
    "hrnet": (hrnet, images(3, 32, 32), ["stage2", "stage3"]),
    "swin": (
        swin,
        {"pixel_values": images(3, 16, 16)[0], "labels": CLASSES},
        ["swin.encoder.layers.0", "swin.encoder.layers.1"],
    ),
}


@pytest.mark.parametrize("name", list(ZOO))
def test_the_first_tensor_is_what_is_nudged(name):
    build, data, blocks = ZOO[name]
    model = nets.make(build, dtype=torch.float64)
    before = snapshot(model)
    tapped = copy.deepcopy(model)
    for block in blocks:
        tapped.set_submodule(block, Tapped(model.get_submodule(block)))

    options = {"n_directions": 2, "samples": None, "seed": 1}
    result = nudging.measure(model, data, nudging.backprop(), blocks, **options)
    taps = [f"{block}.tap" for block in blocks]
    expected = nudging.measure(tapped, data, nudging.backprop(), taps, **options)

    assert result["layer"].values.tolist() == blocks
    for variable in ("loss_change", "predicted_change", "cosine", "gradient_norm", "hidden_norm"):
        np.testing.assert_array_equal(result[variable], expected[variable], err_msg=variable)
    assert (result["loss_change"] != 0).all()
    np.testing.assert_allclose(result["correlation"], 1, atol=0.05)
    assert snapshot(model) == before


@torch.no_grad()
@pytest.mark.parametrize("name", ["tuple", "lstm", "t5"])
def test_what_follows_a_tuple_is_what_a_full_pass_gives(name):
    build, data, blocks = ZOO[name]
    model = nets.make(build, dtype=torch.float64).eval()
    ((inputs, targets),) = take(data, None, model=model)
    state = nudging.observe(model, inputs, targets, blocks)
    assert not state.full_pass_reason

    for block in blocks:
        moved = state.hidden[block] + torch.randn_like(state.hidden[block])
        module = model.get_submodule(block)
        with module.register_forward_hook(lambda *args, moved=moved: put_first(args[2], moved)):
            expected = logits_of(call_model(model, inputs))
        assert torch.equal(logits_of(state.replay(block, moved)), expected)


def test_equilibrium_propagation_runs_blocks_that_return_tuples():
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Linear(12, 12) for _ in range(3)), nn.Linear(12, 3)).double()
    data = images(12)
    credit = nudging.EquilibriumPropagation(steps=3)
    expected = nudging.nudge(plain, data, credit, ["0", "1", "2"])

    class Wrapped(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            x = x[0] if isinstance(x, tuple) else x
            return self.layer(x), None

    class Last(Wrapped):
        def forward(self, x):
            return self.layer(x[0])

    wrapped = nn.Sequential(*(Wrapped(layer) for layer in plain[:3]), Last(plain[3]))
    result = nudging.nudge(wrapped, data, credit, ["0", "1", "2"])
    np.testing.assert_array_equal(result["loss_change"], expected["loss_change"])


def test_the_rest_of_an_output_is_the_same_objects_in_the_same_kind():
    note, value = {"a": 1}, torch.ones(2)
    kinds = [
        (None, torch.zeros(2), note),
        [torch.zeros(2), note],
        Pair(torch.zeros(2), note),
        OrderedDict(none=None, hidden=(torch.zeros(2), 3), note=note),
    ]
    for nest in kinds:
        replaced = replace_first_tensor(nest, value)
        assert type(replaced) is type(nest)
        items = list(replaced.values()) if isinstance(nest, dict) else list(replaced)
        assert items[-1] is note
        assert any(
            item is value or (isinstance(item, tuple) and item[0] is value) for item in items
        )


@pytest.mark.parametrize("batch_size", [4, 3, 1])
def test_of_two_tensors_the_one_with_the_samples_first_is_nudged(batch_size):
    model = nets.make(OfTwoStreams, dtype=torch.float64)
    x = torch.randn(7, 4, 3, dtype=torch.float64)
    y = torch.arange(7) % 3
    result = nudging.nudge(
        model,
        (x, y),
        nudging.random(1),
        "blocks.*",
        eta=0.1,
        normalisation="none",
        batch_size=batch_size,
        keep_samples=True,
    )

    # By hand: the credit is added to the rows of the first block, and the second runs again.
    state = nudging.observe(model, x, y, "blocks.*")
    pixels, rows = model.blocks[0]((x.reshape(-1, 3), x.new_zeros(7, 5)))
    torch.testing.assert_close(state.hidden["blocks.0"], rows, rtol=1e-12, atol=0)
    moved = rows - 0.1 * nudging.random(1)(state)["blocks.0"]
    losses = [
        nn.functional.cross_entropy(
            model.head(model.blocks[1]((pixels, h))[1]), y, reduction="none"
        )
        for h in (rows, moved)
    ]
    expected = (losses[1] - losses[0]).detach()
    np.testing.assert_allclose(result["sample_change"][0, 0], expected, rtol=1e-9)
