"""`attention.capturing` around all sorts of bodies, and what it refuses."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import xarray as xr
from state import snapshot
from test_capture import small_vit
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.overrides import _get_current_function_mode_stack

import attention
from attention import _call


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(8, 2, batch_first=True)
        self.second = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        for layer in (self.first, self.second, self.first):
            x = x + layer(x, x, x)[0]
        return x


def test_a_layer_called_again_gets_a_number_and_another_model_is_ignored():
    model, teacher, x = Encoder(), Encoder(), torch.randn(2, 5, 8)
    with attention.capturing(model, queries="mean") as recording:
        teacher(x)
        model(x)
    seen = recording.dataset()
    assert seen["layer"].values.tolist() == ["first", "second", "first#2"]


def test_forward_passes_follow_one_another_along_sample():
    model, x = small_vit(), torch.randn(5, 3, 32, 32)
    whole = attention.capture(model, x)
    with torch.no_grad(), attention.capturing(model) as recording:
        for part in x.split(2):
            model(part)
    pieces = recording.dataset()
    assert pieces.sizes["sample"] == 5
    np.testing.assert_allclose(pieces["entropy"], whole["entropy"], atol=1e-5)


@pytest.mark.parametrize("way", ["forward", "forward_features", "blocks"])
def test_a_model_may_be_called_by_its_parts(way):
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    whole = attention.capture(model, x)
    with torch.no_grad(), attention.capturing(model) as recording:
        if way == "blocks":
            tokens = model._pos_embed(model.patch_embed(x))
            for block in model.blocks:
                tokens = block(tokens)
        else:
            getattr(model, way)(x)
    got = recording.dataset()
    xr.testing.assert_identical(got, whole[list(got.data_vars)])


def test_a_function_of_the_model_is_not_taken_for_its_call():
    def step(model, everything):
        return model(everything[:2])

    model, x = small_vit(), torch.randn(6, 3, 32, 32)
    with attention.capturing(model) as recording:
        step(model, x)
    assert recording.dataset().sizes["sample"] == 2


class Stepping(Encoder):
    """Calls itself from a method of its own, as Lightning modules do."""

    def training_step(self, batch):
        return [self(part) for part in batch.split(2)]


def test_every_call_from_a_method_of_the_model_is_a_pass():
    model, batch = Stepping(), torch.randn(4, 5, 8)
    with attention.capturing(model, queries="mean") as recording:
        model.training_step(batch)
    seen = recording.dataset()
    assert seen.sizes["sample"] == 4
    np.testing.assert_allclose(
        seen["entropy"], attention.capture(model, batch, queries="mean")["entropy"], atol=1e-5
    )


def test_layers_are_picked_by_name_of_any_ancestor():
    model, x = small_vit(depth=4), torch.randn(1, 3, 32, 32)
    seen = attention.capture(model, x, layers=["blocks.[1-2]"])
    assert seen["layer"].values.tolist() == ["blocks.1.attn", "blocks.2.attn"]


def test_steps_are_concatenated():
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    pieces = [attention.capture(model, x, maps=True) for _ in range(2)]
    steps = xr.Variable("step", [0, 10], {"long_name": "optimizer updates"})
    trace = xr.concat(pieces, dim=steps, combine_attrs="drop_conflicts")
    assert trace["entropy"].dims == ("step", "sample", "layer", "head")
    again = attention.statistics(trace)
    np.testing.assert_allclose(again["gini"], trace["gini"], atol=1e-6)


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_exception(failure):
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    before = snapshot(model)

    def interrupted():
        with attention.capturing(model):
            model(x)
            raise failure

    with pytest.raises(failure):
        interrupted()
    assert snapshot(model) == before
    assert not _get_current_function_mode_stack()


class Flexible(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.MultiheadAttention(16, 1, batch_first=True)
        self.flexible = FlexAttention()

    def forward(self, x):
        return self.flexible(self.plain(x, x, x)[0])


class FlexAttention(nn.Module):
    def forward(self, x):
        x = x[:, None]
        return flex_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_refused_even_beside_attention_that_can_be_read():
    model, x = Flexible().eval(), torch.randn(1, 16, 16)
    with pytest.raises(ValueError, match=r"layer 'flexible' .* flex_attention.* sdpa or eager"):
        attention.capture(model, x, queries="mean")


class OwnKernel(nn.Module):
    def forward(self, x):
        q = x[:, None]
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)[0]


def test_a_kernel_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="_scaled_dot_product_flash_attention_for_cpu, which can"):
        attention.capture(OwnKernel(), torch.randn(1, 4, 8), queries="mean")


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_no_attention_is_refused(name):
    model = timm.create_model(name)
    with pytest.raises(ValueError, match="no attention was seen"):
        attention.capture(model, torch.randn(1, 3, 32, 32), queries="mean")


def test_separable_attention_is_refused_with_its_place():
    model = timm.create_model("mobilevitv2_050")
    with pytest.raises(
        ValueError, match=r"A softmax without .* is in stages.2.1.transformer.0.attn"
    ):
        attention.capture(model, torch.randn(1, 3, 64, 64), queries="mean")


class Gated(nn.Module):
    """Attention, then a softmax that weighs tokens without a product of matrices."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.attention(x, x, x)[0]
        return (x * x.softmax(-1)).sum(1)


def test_a_softmax_that_is_left_out_is_named():
    with pytest.warns(UserWarning, match=r"a softmax was left out.* in $"):
        attention.capture(Gated(), torch.randn(2, 5, 8), queries="mean")


def test_what_does_not_reproduce_the_output_is_not_returned(monkeypatch):
    real = F.scaled_dot_product_attention

    class Sharper(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    def wrong(place, output, arguments, **known):
        return real_description(place, output, arguments | {"scale": 0.1}, **known)

    real_description = _call.of_kernel
    monkeypatch.setattr("attention._tap.of_kernel", wrong)
    x = torch.randn(1, 2, 5, 8)
    with pytest.raises(RuntimeError, match="layer '': the attention read does not reproduce"):
        attention.capture(Sharper(), x, queries="mean")
    assert F.scaled_dot_product_attention is real


BAD = {
    "queries": ["none", [], ""],
    "keys": ["cls"],
    "threshold": [0, 1.5, "high"],
    "mass": [0, 2],
    "chunk": [0, 1.5, True],
    "prefix": [-1],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_bad_arguments_are_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}`: expected .* got"):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), **{name: value})


def test_a_model_without_class_token_says_what_else_to_ask_for():
    model = small_vit(class_token=False, global_pool="avg")
    with pytest.raises(ValueError, match=r'`queries`: expected "mean", .* no class token'):
        attention.capture(model, torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match=r"`layers`: nothing is called 'block"):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), layers="block.0")
    with pytest.raises(
        ValueError, match=r"`layers`: no attention in blocks.0.mlp; .*blocks.1.attn"
    ):
        attention.capture(small_vit(), torch.randn(1, 3, 32, 32), layers="blocks.0.mlp")


def test_a_recording_is_read_after_the_body():
    model = small_vit()
    with attention.capturing(model) as recording:
        model(torch.randn(1, 3, 32, 32))
        with pytest.raises(ValueError, match="leave the body of `capturing` first"):
            recording.dataset()
    assert recording.dataset().sizes["sample"] == 1


class Blind(nn.Module):
    """Its last query may look nowhere."""

    def forward(self, x):
        mask = torch.ones(5, 5, dtype=torch.bool)
        mask[-1] = False
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def test_a_row_that_sees_nothing_has_no_statistics():
    seen = attention.capture(Blind(), torch.randn(2, 3, 5, 4), queries="all", maps=True)
    for name in ("entropy", "gini", "peak", "coverage", "mass_coverage", "participation", "weight"):
        assert seen[name].isel(query=4).isnull().all(), name
        assert seen[name].isel(query=3).notnull().all(), name


def test_inference_mode_is_no_obstacle():
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        inside = attention.capture(model, x)
    assert inside.identical(attention.capture(model, x))


def test_prefix_can_be_said():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    seen = attention.capture(model, torch.randn(2, 5, 8), prefix=1, maps=True)
    assert seen["n_prefix"].values.tolist() == [1]
    assert seen.sizes["key"] == 4


def test_passes_that_differ_are_refused():
    model = nn.ModuleDict({"a": Encoder(), "b": Encoder()})
    x = torch.randn(1, 3, 8)
    with attention.capturing(model, queries="mean") as recording:
        for name in ("a", "b", "a"):
            model[name](x)
    with pytest.raises(ValueError, match="the forward passes differ in their attention layers"):
        recording.dataset()
