"""Which tokens come before the patches, by the names of their parameters."""

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
import xarray as xr
from torch import nn

import attention
import probes
from resonance_toolkit import CLASS_TOKEN_NAMES
from tests.helpers.attention_models import build


class Prefixed(nn.Module):
    """Tokens of its own before those of the input, and attention among all of them."""

    def __init__(self, **counts):
        super().__init__()
        self.names = list(counts)
        for name, count in counts.items():
            self.register_parameter(name, nn.Parameter(torch.randn(1, count, 8)))

    def forward(self, x):
        prefix = [getattr(self, name).expand(len(x), -1, -1) for name in self.names]
        tokens = torch.cat([*prefix, x], 1)[:, None]
        return F.scaled_dot_product_attention(tokens, tokens, tokens)


def class_row(model, x):
    """The first row of the softmax, by hand."""
    prefix = [getattr(model, name).expand(len(x), -1, -1) for name in model.names]
    tokens = torch.cat([*prefix, x], 1)
    scores = tokens[:, :1] @ tokens.mT / tokens.size(-1) ** 0.5
    return scores.softmax(-1)[:, 0].detach().numpy()


@pytest.mark.parametrize("name", sorted(CLASS_TOKEN_NAMES))
def test_every_known_name_of_a_class_token_is_one(name):
    torch.manual_seed(0)
    model, x = Prefixed(**{name: 1}).double(), torch.randn(3, 6, 8).double()
    result = attention.capture(model, x, maps=True)

    row = class_row(model, x)
    np.testing.assert_allclose(result["prefix_mass"].values[:, 0, 0], row[:, 0], rtol=1e-12)
    patches = row[:, 1:] / row[:, 1:].sum(-1, keepdims=True)
    np.testing.assert_allclose(result["weight"].values[:, 0, 0], patches, rtol=1e-12)


def test_registers_are_left_out_but_are_no_class_token():
    model, x = Prefixed(register_tokens=4), torch.randn(3, 6, 8)
    with pytest.raises(ValueError, match="the model has no class token"):
        attention.capture(model, x, queries="cls")
    result = attention.capture(model, x, queries="mean")
    assert result["n_prefix"].values.tolist() == [4]
    xr.testing.assert_identical(attention.capture(model, x), result)


def small_bert(**settings):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        attn_implementation="eager",
        initializer_range=0.5,
        **settings,
    )
    return transformers.BertForSequenceClassification(config).double().eval()


@pytest.mark.parametrize("queries", ["auto", "cls"])
def test_bert_s_first_token_is_its_class_token(queries):
    model, ids = small_bert(), torch.randint(60, (3, 7))
    result = attention.capture(model, {"input_ids": ids}, queries=queries, maps=True)

    # Its own maps: the first row, without the class token's own column.
    with torch.no_grad():
        rows = torch.stack(model(ids, output_attentions=True).attentions, 1)[:, :, :, 0]
    others = (rows[..., 1:] / rows[..., 1:].sum(-1, keepdim=True)).numpy()
    np.testing.assert_allclose(result["weight"], others, rtol=1e-12)
    np.testing.assert_allclose(result["prefix_mass"], rows[..., 0], rtol=1e-12)
    np.testing.assert_allclose(result["entropy"], -(others * np.log(others)).sum(-1), rtol=1e-12)
    assert result.attrs["queries"] == "cls"


def test_explicit_rows_of_bert_have_all_keys_as_ever():
    model, ids = small_bert(), torch.randint(60, (3, 7))
    result = attention.capture(model, {"input_ids": ids}, queries="mean")
    assert result["n_prefix"].values.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timm vit", "cls"),
        ("timm swin", "mean"),
        ("timm cait", "cls"),
        ("torch encoder", "mean"),
        ("hf vit sdpa", "cls"),
        ("hf bert sdpa", "cls"),
        ("hf albert sdpa", "cls"),
        ("hf gpt2 sdpa", "mean"),
        ("hf llama sdpa", "mean"),
    ],
)
def test_auto_is_the_class_token_where_there_is_one(name, expected):
    model, x, _ = build(name)
    found = attention.capture(model, x)
    assert found.attrs["queries"] == expected
    xr.testing.assert_identical(found, attention.capture(model, x, queries=expected))


def test_a_bert_that_is_a_decoder_has_no_class_token():
    config = small_bert().config
    config.is_decoder = True
    model, ids = transformers.BertLMHeadModel(config), torch.randint(60, (3, 7))
    assert attention.capture(model, {"input_ids": ids}).attrs["queries"] == "mean"


def test_both_class_tokens_of_crossvit_are_found():
    torch.manual_seed(0)
    model = timm.create_model("crossvit_tiny_240", depth=([1, 1, 1],)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "cls_token" in name or "pos_embed" in name:
                parameter.normal_()
    result = attention.capture(model, torch.randn(1, 3, 240, 240), maps=True)

    # Each branch has patches of its own size, and one class token before them.
    assert result.attrs["queries"] == "cls"
    assert set(result["n_prefix"].values) == {1}
    assert set(result["n_keys"].values) == {20 * 20 + 1, 14 * 14 + 1}
    assert bool(result["entropy"].notnull().any(["sample", "head"]).all())
    np.testing.assert_allclose(result["weight"].sum("key"), 1, rtol=1e-5)


class LateClassToken(nn.Module):
    """A class token that no attention ever sees first."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.patches = nn.Conv2d(3, 8, 4, 4)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).mT[:, None]
        tokens = F.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0]
        return torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], 1)


def test_auto_is_the_mean_where_no_layer_has_the_class_token():
    model, x = LateClassToken(), torch.randn(2, 3, 16, 16)
    with pytest.raises(ValueError, match="no layer seen has the class token first"):
        attention.capture(model, x, queries="cls")
    found = attention.capture(model, x)
    xr.testing.assert_identical(found, attention.capture(model, x, queries="mean"))


def test_a_text_beside_images_has_no_class_token_of_theirs():
    torch.manual_seed(0)
    small = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    text = {"vocab_size": 20, "eos_token_id": 19, "max_position_embeddings": 8}
    config = transformers.CLIPConfig(
        text_config=small | text,
        vision_config=small | {"image_size": 8, "patch_size": 4},
        projection_dim=4,
    )
    model = transformers.CLIPModel(config).double().eval()
    batch = {
        "input_ids": torch.tensor([[1, 5, 6, 19], [1, 7, 8, 19]]),
        "pixel_values": torch.randn(2, 3, 8, 8).double(),
    }

    # Its first token sees itself alone: a row of it would say nothing of the text.
    result = attention.capture(model, batch)
    by_layer = dict(zip(result["layer"].values, result["n_prefix"].values, strict=True))
    assert sorted(by_layer.values()) == [0, 1]
    in_text = [name.startswith("text_model") for name in by_layer]
    assert [by_layer[name] == 0 for name in by_layer] == in_text
    assert bool(result["entropy"].isel(layer=in_text).isnull().all())
    assert bool(result["entropy"].isel(layer=[not of_text for of_text in in_text]).notnull().all())

    # And branches read the mean of the text, the class token of the images.
    probe = probes.attach(model, "*.encoder.layers.0", n=1, sample=batch, classes=3)
    kinds = {name.partition(".")[0]: pool.kind for name, pool in probe.pools.items()}
    assert kinds == {"text_model": "mean", "vision_model": "cls"}
