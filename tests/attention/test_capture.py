"""`attention.capture` against maps computed in other ways."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attention
from tests.helpers.attention_models import Attending, Handmade, Padded, build
from tests.helpers.small_vit import all_maps


def unfused_maps(model, x):
    """What goes into dropout after the softmax, in a copy without fused kernels."""
    model, maps = copy.deepcopy(model), []
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.attn_drop.register_forward_hook(lambda m, args, out: maps.append(args[0]))
    with torch.no_grad():
        model(x)
    return maps


@pytest.mark.parametrize("name", ["timm vit", "timm beit", "timm eva02", "timm deit distilled"])
def test_equals_the_unfused_maps_of_timm(name):
    model, x, _ = build(name)
    model, x = model.double(), x.double()
    expected = torch.stack(unfused_maps(model, x), 1)
    np.testing.assert_allclose(all_maps(model, x), expected, atol=1e-12)


def test_relative_bias_of_coatnet_equals_its_unfused_maps_at_every_size():
    model, x, _ = build("timm coatnet")
    seen = all_maps(model.double(), x.double())
    for index, expected in enumerate(unfused_maps(model, x.double())):
        heads, size = expected.shape[1:3]
        np.testing.assert_allclose(seen[:, index, :heads, :size, :size], expected, atol=1e-12)


@pytest.mark.parametrize("way", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["vit", "deit", "bert", "gpt2", "llama", "albert"])
def test_equals_the_eager_maps_of_transformers(name, way):
    model, x, _ = build(f"hf {name} {way}")
    eager, x, _ = build(f"hf {name} eager")
    x = {key: value.double() if value.is_floating_point() else value for key, value in x.items()}
    with torch.no_grad():
        expected = torch.stack(eager.double()(**x, output_attentions=True).attentions, 1)
    np.testing.assert_allclose(
        all_maps(model.double(), x), expected, atol=1e-7
    )  # its softmax is float32


@pytest.mark.parametrize("way", ["sdpa", "eager"])
def test_windows_follow_one_another_along_query(way):
    try:
        model, x, _ = build(f"hf swin {way}")
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise
        pytest.skip(f"the Swin of this transformers has no {way} attention")
    eager, x, _ = build("hf swin eager")
    with torch.no_grad():
        maps = eager.double()(x["pixel_values"].double(), output_attentions=True).attentions
    seen = all_maps(model.double(), {"pixel_values": x["pixel_values"].double()}, layers="**.0.*")
    expected = maps[0].unflatten(0, (2, -1)).movedim(1, 2).flatten(2, 3)
    np.testing.assert_allclose(seen[:, 0, :2], expected, atol=1e-7)  # its softmax is float32


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_equals_the_weights_of_multihead_attention(need_weights, batch_first):
    model = Attending(need_weights=need_weights, batch_first=batch_first).double().eval()
    x = torch.randn(3, 5, 16).double()
    inner, seen = model.attention, all_maps(model, x)
    with torch.no_grad():
        _, expected = inner(x, x, x, average_attn_weights=False)
    np.testing.assert_allclose(seen[:, 0], expected, atol=1e-12)


def test_padded_keys_are_absent():
    model, x = Padded().double().eval(), torch.randn(2, 5, 16).double()
    seen = attention.capture(model, x, queries="all", maps=True)
    weight = seen["weight"].isel(layer=0)
    assert not weight.isel(sample=0).isnull().any()
    assert weight.isel(sample=1, key=[3, 4]).isnull().all()
    layer = model.encoder.layers[0].self_attn
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        _, expected = layer(x, x, x, key_padding_mask=hidden, average_attn_weights=False)
    np.testing.assert_allclose(weight.fillna(0), expected, atol=1e-12)
    short = seen["normalised_entropy"].isel(sample=1, layer=0)
    p = expected[1, :, :, :3]
    np.testing.assert_allclose(short, (-(p * p.log()).sum(-1) / np.log(3)), atol=1e-12)


class Masked(nn.Module):
    """Attention of two heads under a mask that is added to the scores."""

    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.mask)


def test_a_key_hidden_by_a_large_negative_number_is_absent():
    """As in Swin, whose shifted windows add -100: exp(-100) is small, but not zero."""
    mask = torch.zeros(4, 4)
    mask[:, 3] = -100
    seen = attention.capture(Masked(mask), torch.randn(2, 4, 8), queries="all", maps=True)
    assert bool(seen["weight"].isel(key=3).isnull().all())
    assert bool(seen["weight"].isel(key=[0, 1, 2]).notnull().all())
    alone = attention.capture(Masked(None), torch.zeros(1, 4, 8), queries=[0])
    equal = attention.capture(Masked(mask), torch.zeros(1, 4, 8), queries=[0])
    np.testing.assert_allclose(
        [alone["peak"].values.min(), equal["peak"].values.min()], [1 / 4, 1 / 3]
    )
    np.testing.assert_allclose(equal["normalised_entropy"], 1, rtol=1e-6)


def test_small_numbers_may_be_flushed_to_zero():
    """The bound of a nearly uniform row over many keys is no normal number in float32."""
    mask = torch.zeros(4000)
    mask[2000:] = -torch.inf
    model, x = Masked(mask[None]), torch.zeros(1, 4000, 8)
    supported = torch.set_flush_denormal(True)
    try:
        seen = attention.capture(model, x, queries=[0], maps=True)
    finally:
        torch.set_flush_denormal(False)
    if not supported:
        pytest.skip("the processor cannot")
    np.testing.assert_allclose(seen["entropy"], np.log(2000), rtol=1e-5)
    np.testing.assert_allclose(seen["coverage"], 1, rtol=1e-5)
    np.testing.assert_array_equal(seen["weight"].notnull().sum("key"), 2000)


def test_a_row_that_sees_nothing_is_unknown_and_spoils_no_mean():
    mask = torch.zeros(2, 4, 4).double()
    mask[0, 1] = -torch.inf  # of the first head
    model, x = Masked(mask), torch.randn(2, 4, 8).double()
    rows = attention.capture(model, x, queries="all", maps=True).isel(layer=0)
    assert bool(rows["weight"].isel(head=0, query=1).isnull().all())
    for name in ("entropy", "gini", "peak", "coverage", "mass_coverage", "participation"):
        unknown = rows[name].isnull()
        assert bool(unknown.isel(head=0, query=1).all())
        assert int(unknown.sum()) == 2
    similar = rows["head_similarity"].isnull()  # the other head has nothing to be compared with
    assert bool(similar.isel(query=1).all())
    assert int(similar.sum()) == 2
    mean = attention.capture(model, x, queries="mean", maps=True).isel(layer=0)
    np.testing.assert_allclose(mean["entropy"], rows["entropy"].mean("query"))
    np.testing.assert_allclose(mean["weight"], rows["weight"].fillna(0).mean("query"))


def reference(q, k, mask=None, scale=None):
    scores = q @ k.mT * (q.size(-1) ** -0.5 if scale is None else scale)
    return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)


@pytest.mark.parametrize("way", ["operator", "causal_cross", "grouped", "broadcast", "einsum"])
def test_handmade_attention_equals_its_formula(way):
    model, x = Handmade(way).double(), torch.randn(2, 5, 16).double()
    with torch.no_grad():
        q, k, _ = model.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    expected = {
        "operator": lambda: reference(q, k, torch.ones(5, 5).tril().bool()),
        # Rectangular causal masks start at the top left.
        "causal_cross": lambda: reference(q[:, :, :3], k, torch.ones(3, 5).tril().bool()),
        "grouped": lambda: reference(q, k[:, [0, 0, 1, 1]], scale=1.0),
        "broadcast": lambda: reference(q, k[:, :1]),
        "einsum": lambda: reference(q, k, scale=1.0),
    }[way]()
    np.testing.assert_allclose(all_maps(model, x)[:, 0], expected, atol=1e-12)


def test_talking_heads_give_the_softmax_before_mixing_and_say_so():
    model, x, _ = build("timm cait")
    model, x, inputs = model.double(), x.double(), []
    block = model.blocks[0].attn
    handle = block.register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    seen = attention.capture(model, x, queries="all", keys="all", maps=True)
    handle.remove()
    with torch.no_grad():
        q, k, _ = block.qkv(inputs[0]).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        mixed = block.proj_l((q * block.scale @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    weight = seen["weight"].isel(layer=0, query=slice(16), key=slice(16))
    np.testing.assert_allclose(weight, mixed.softmax(-1), atol=1e-12)
    assert seen["kind"].values.tolist() == ["talking heads"] * 2 + ["sdpa"] * 2


def test_attention_across_channels_is_labelled_and_has_no_place():
    model, x, _ = build("timm xcit")
    seen = attention.capture(model, x, queries="mean")
    assert seen["kind"].values.tolist() == ["channel", "channel", "sdpa", "sdpa"]
    assert seen["distance"].isel(layer=[0, 1]).isnull().all()
    cls = attention.capture(model, x)["entropy"]
    assert cls.isel(layer=[0, 1]).isnull().all()
    assert cls.isel(layer=[2, 3]).notnull().all()


@pytest.mark.parametrize(("way", "kind"), [("grouped", "sdpa"), ("module", "softmax")])
def test_as_many_tokens_as_channels_are_still_tokens(way, kind):
    model = Handmade(way)  # four heads of four channels
    captured = attention.capture(model, torch.randn(2, 4, 16), queries="mean")
    assert captured["kind"].values.tolist() == [kind]


class Scaled(nn.Module):
    """Values of any size: attention is compared with outputs in proportion to them."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, self.factor * x)


@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e6])
def test_the_size_of_the_values_does_not_matter(factor, monkeypatch):
    from attention import _tap

    x = torch.randn(2, 3, 5, 8)
    captured = attention.capture(Scaled(factor), x, queries="mean")
    np.testing.assert_allclose(
        captured["entropy"], attention.capture(Scaled(1.0), x, queries="mean")["entropy"]
    )

    describe = _tap.call_from_kernel
    monkeypatch.setattr(
        _tap,
        "call_from_kernel",
        lambda place, output, arguments, **counts: describe(
            place, output, arguments | {"scale": 0.1}, **counts
        ),
    )
    with pytest.raises(RuntimeError, match="does not reproduce"):
        attention.capture(Scaled(factor), x, queries="mean")
