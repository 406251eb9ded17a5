"""`attention.capture` against maps computed in other ways."""

import copy

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from attention_models import Attending, Handmade, Padded, build
from torch.utils._python_dispatch import TorchDispatchMode

import attention


def small_vit(**settings):
    torch.manual_seed(0)
    settings = {
        "img_size": 32,
        "patch_size": 8,
        "embed_dim": 24,
        "depth": 2,
        "num_heads": 3,
    } | settings
    model = timm.models.VisionTransformer(num_classes=5, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def all_maps(model, x, **settings):
    seen = attention.capture(model, x, queries="all", keys="all", maps=True, **settings)
    return seen["weight"].fillna(0).values


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
    model, x, _ = build(f"hf swin {way}")
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


def test_class_token_over_patches_is_renormalised():
    model, x = small_vit().double(), torch.randn(3, 3, 32, 32).double()
    whole = attention.capture(model, x, keys="all", maps=True)
    patches = attention.capture(model, x, maps=True)
    rows = whole["weight"].values
    np.testing.assert_allclose(whole["prefix_mass"], rows[..., 0], atol=1e-15)
    expected = rows[..., 1:] / rows[..., 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(patches["weight"], expected, atol=1e-15)
    with torch.no_grad():
        np.testing.assert_array_equal(patches["prediction"], model(x))


def test_rows_asked_for_are_those_of_the_whole_map():
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()
    settings = {"keys": "all", "maps": True}
    whole = attention.capture(model, x, queries="all", **settings)
    cls = attention.capture(model, x, queries="cls", **settings)
    some = attention.capture(model, x, queries=[3, -1, 99], **settings)
    mean = attention.capture(model, x, queries="mean", **settings)
    for name in whole.data_vars.keys() - {"prediction"}:
        rows = whole[name]
        np.testing.assert_allclose(cls[name], rows.isel(query=0), atol=1e-12)
        np.testing.assert_allclose(some[name].isel(query=0), rows.isel(query=3), atol=1e-12)
        np.testing.assert_allclose(some[name].isel(query=1), rows.isel(query=-1), atol=1e-12)
        assert some[name].isel(query=2).isnull().all()
        np.testing.assert_allclose(mean[name], rows.mean("query"), atol=1e-12)


def test_rows_of_windows_are_counted_through_all_windows():
    model, x, _ = build("timm swin")
    whole = attention.capture(model, x, queries="all", maps=True)
    some = attention.capture(model, x, queries=[0, 60, 700], maps=True)
    for name in ("weight", "gini", "distance", "head_similarity"):
        np.testing.assert_allclose(
            some[name], whole[name].isel(query=[0, 60, 700]), atol=1e-6, equal_nan=True
        )
    mean = attention.capture(model, x, queries="mean", maps=True)
    np.testing.assert_allclose(mean["gini"], whole["gini"].mean("query"), atol=1e-6)


@pytest.mark.parametrize("name", ["timm vit", "timm swin", "hf gpt2 sdpa", "hf bert eager"])
def test_chunks_change_nothing(name):
    model, x, _ = build(name)
    whole = attention.capture(model, x, queries="all", maps=True, chunk=10**6)
    pieces = attention.capture(model, x, queries="all", maps=True, chunk=3)
    for variable in whole.data_vars:
        np.testing.assert_allclose(pieces[variable], whole[variable], rtol=1e-5, atol=1e-6)


class Largest(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
        return result


@pytest.mark.parametrize("queries", ["all", "mean", "cls"])
def test_no_whole_map_is_ever_made(queries):
    model, x = small_vit(patch_size=2, embed_dim=6), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), Largest() as plain:
        model(x)
    with Largest() as captured:
        attention.capture(model, x, queries=queries, chunk=8)
    n_tokens = 257
    assert captured.size <= max(plain.size, 3 * 8 * n_tokens)
    assert plain.size < 3 * n_tokens**2


def test_distance_on_a_grid_a_coarser_grid_and_a_sequence():
    def brute(weight, place, key_place):
        steps = [[np.hypot(a - c, b - d) for c, d in key_place] for a, b in place]
        return (weight * np.array(steps)).sum(-1)

    model, x, _ = build("timm vit, wide image")  # 2 x 6 patches
    seen = attention.capture(model, x, queries="all", maps=True)
    place = [(row, column) for row in range(2) for column in range(6)]
    weight = seen["weight"].values[:, :, :, 1:]
    np.testing.assert_allclose(
        seen["distance"].values[..., 1:], brute(weight, place, place), rtol=1e-5
    )
    assert seen["distance"].isel(query=0).isnull().all()  # the class token is nowhere

    model, x, _ = build("timm pvt")  # first stage: 16 x 16 queries, 2 x 2 keys
    seen = attention.capture(model, x, queries="all", maps=True).isel(layer=0, head=0)
    place = [(row, column) for row in range(16) for column in range(16)]
    key_place = [(row, column) for row in (3.5, 11.5) for column in (3.5, 11.5)]
    np.testing.assert_allclose(
        seen["distance"], brute(seen["weight"].values, place, key_place), rtol=1e-5
    )

    model, x, _ = build("hf gpt2 sdpa")
    seen = attention.capture(model, x, queries="all", maps=True)
    line = [(0, position) for position in range(7)]
    weight = seen["weight"].fillna(0).values
    np.testing.assert_allclose(seen["distance"], brute(weight, line, line), rtol=1e-5)


def test_training_is_bitwise_the_same_and_rows_are_those_before_dropout():
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6) % 5

    def train(captured):
        model = small_vit(attn_drop_rate=0.5, proj_drop_rate=0.2).train()
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(1)
        for _ in range(3):
            if captured:
                with attention.capturing(model, queries="all", maps=True, keys="all") as recording:
                    output = model(x)
                rows = recording.dataset()["weight"].sum("key")
                np.testing.assert_allclose(rows, 1, atol=1e-5)
            else:
                output = model(x)
            optimizer.zero_grad()
            F.cross_entropy(output, y).backward()
            optimizer.step()
        return model.state_dict()

    plain, captured = train(False), train(True)
    assert all(torch.equal(plain[name], captured[name]) for name in plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_gives_rows_in_full_precision(dtype):
    model, x = small_vit(), torch.randn(2, 3, 32, 32)
    exact = all_maps(model, x)
    with torch.autocast("cpu", dtype):
        mixed = all_maps(model, x)
    low = all_maps(copy.deepcopy(model).to(dtype), x.to(dtype))
    for rough in (mixed, low):
        np.testing.assert_allclose(rough.sum(-1), 1, atol=1e-6)
        np.testing.assert_allclose(rough, exact, atol=0.05)


def test_compiled_model_runs_uncompiled_once_and_is_not_compiled_again():
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    plain, x = small_vit(), torch.randn(2, 3, 32, 32)
    expected = attention.capture(plain, x)
    model = torch.compile(copy.deepcopy(plain), backend=backend)
    with torch.no_grad():
        before = model(x)
        count = len(compiled)
        seen = attention.capture(model, x)
        after = model(x)
    assert count == len(compiled) > 0
    assert seen.identical(expected)
    assert torch.equal(before, after)
    blocks = copy.deepcopy(plain)
    for block in blocks.blocks:
        block.compile(backend=backend)
    with torch.no_grad():
        blocks(x)
    assert attention.capture(blocks, x).identical(expected)


def test_checkpointed_blocks_are_read_once():
    model, x = small_vit().train(), torch.randn(2, 3, 32, 32, requires_grad=True)
    model.set_grad_checkpointing()
    with attention.capturing(model) as recording:
        model(x).sum().backward()
    assert recording.dataset()["layer"].values.tolist() == ["blocks.0.attn", "blocks.1.attn"]
