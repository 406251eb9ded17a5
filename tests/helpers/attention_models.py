"""Small models of every family that `attention` reads: name -> (model, input, attention layers)."""

import functools

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn


def image(size, width=None):
    return torch.randn(2, 3, size, width or size)


def tokens(*shape):
    return torch.randn(*shape)


class Attending(nn.Module):
    """One `nn.MultiheadAttention`, with and without weights."""

    def __init__(self, **settings):
        super().__init__()
        self.need_weights = settings.pop("need_weights")
        self.attention = nn.MultiheadAttention(16, 4, **settings)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=self.need_weights)[0]


class Padded(nn.Module):
    """An encoder whose second sample is two tokens shorter."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        hidden[1, -2:] = True
        return self.encoder(x, src_key_padding_mask=hidden)[:, :-2]  # torch zeroes what is hidden


class Handmade(nn.Module):
    """Attention as people write it, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.qkv = nn.Linear(16, 48)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        return getattr(self, self.way)(q, k, v)

    def einsum(self, q, k, v):
        weights = torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1)
        return torch.einsum("bhij,bhjd->bihd", weights, v)

    def module(self, q, k, v):
        return self.softmax(q @ k.mT) @ v

    def channels_first(self, q, k, v):
        return v.mT @ F.softmax(q @ k.mT, dim=3).transpose(-2, -1)

    def operator(self, q, k, v):
        return torch.ops.aten.scaled_dot_product_attention(q, k, v, None, 0.0, True)

    def causal_cross(self, q, k, v):
        return F.scaled_dot_product_attention(q[:, :, :3], k, v, is_causal=True)

    def grouped(self, q, k, v):
        return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True, scale=1.0)

    def broadcast(self, q, k, v):
        return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1])


def _timm(name, size, n_layers, **settings):
    def build():
        return timm.create_model(name, **settings), image(size), n_layers

    return build


def _encoder(**settings):
    def build():
        layer = nn.TransformerEncoderLayer(16, 4, 32, **settings)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), tokens(5, 3, 16), 2

    return build


def _plain(make, x, n_layers):
    return lambda: (make(), x, n_layers)


_SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
_MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
_TEXT = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}


def _hf(kind, make_x, n_layers, attention, **settings):
    def build():
        config = getattr(transformers, f"{kind}Config")(**settings)
        model_class = getattr(transformers, f"{kind}Model")
        if attention == "sdpa" and not model_class._supports_sdpa:
            pytest.skip(f"{kind} of this version of transformers has no fused kernel")
        model = model_class._from_config(config, attn_implementation=attention)
        return model, make_x(), n_layers

    return build


def _both(name, *args, **settings):
    ways = ("sdpa", "eager")
    return {f"hf {name} {way}": _hf(*args, attention=way, **settings) for way in ways}


def _pixels(size):
    return lambda: {"pixel_values": image(size)}


MODELS = {
    "timm vit": _timm("vit_tiny_patch16_224", 64, 2, img_size=64, depth=2),
    "timm vit, wide image": lambda: (
        timm.create_model("vit_tiny_patch16_224", img_size=(32, 96), depth=1),
        image(32, 96),
        1,
    ),
    "timm vit, registers": _timm("vit_small_patch16_dinov3", 64, 1, img_size=64, depth=1),
    "timm vit, attention pool": _timm(
        "vit_base_patch16_siglip_224", 64, 2, img_size=64, depth=1, embed_dim=96, num_heads=3
    ),
    "timm deit distilled": _timm("deit_tiny_distilled_patch16_224", 64, 2, img_size=64, depth=2),
    "timm beit": _timm(
        "beit_base_patch16_224", 64, 2, img_size=64, depth=2, embed_dim=96, num_heads=3
    ),
    "timm eva02": _timm("eva02_tiny_patch14_224", 56, 2, img_size=56, depth=2),
    "timm relative position": _timm("vit_relpos_small_patch16_224", 64, 2, img_size=64, depth=2),
    "timm naflexvit": _timm(
        "naflexvit_base_patch16_gap", 64, 2, depth=2, embed_dim=96, num_heads=3
    ),
    "timm swin": _timm(
        "swin_tiny_patch4_window7_224", 112, 5, img_size=112, depths=(1, 2, 1, 1), embed_dim=24
    ),
    "timm swinv2": _timm(
        "swinv2_tiny_window8_256", 128, 5, img_size=128, depths=(1, 2, 1, 1), embed_dim=24
    ),
    "timm coatnet": _timm("coatnet_nano_rw_224", 64, 9, img_size=64),
    "timm maxvit": _timm("maxvit_rmlp_pico_rw_256", 64, 22, img_size=64),
    "timm cait": _timm("cait_xxs24_224", 64, 4, img_size=64, depth=2),
    "timm pvt": _timm("pvt_v2_b0", 64, 8),
    "timm mobilevit": _timm("mobilevit_xxs", 64, 9),
    "timm levit": _timm("levit_128s", 224, 11),
    "timm xcit": _timm("xcit_nano_12_p16_224", 64, 4, img_size=64, depth=2),
    "timm davit": _timm("davit_tiny", 64, 8, depths=(1, 1, 1, 1)),
    "timm mvit": _timm("mvitv2_tiny", 64, 10, img_size=64),
    "torchvision vit": _plain(
        lambda: torchvision.models.VisionTransformer(64, 16, 2, 2, 32, 64), image(64), 2
    ),
    "torchvision swin": _plain(torchvision.models.swin_t, image(64), 12),
    "torchvision swin v2": _plain(torchvision.models.swin_v2_t, image(64), 12),
    "torch multi-head": _plain(
        lambda: Attending(need_weights=False, batch_first=True), tokens(2, 5, 16), 1
    ),
    "torch multi-head, weights": _plain(
        lambda: Attending(need_weights=True, batch_first=True), tokens(2, 5, 16), 1
    ),
    "torch multi-head, samples second": _plain(
        lambda: Attending(need_weights=True), tokens(5, 2, 16), 1
    ),
    "torch multi-head, one sample": _plain(lambda: Attending(need_weights=False), tokens(5, 16), 1),
    "torch encoder": _encoder(batch_first=True),
    "torch encoder, norm first": _encoder(batch_first=True, norm_first=True),
    "torch encoder, samples second": _encoder(),
    "torch encoder, padded": _plain(Padded, tokens(2, 5, 16), 2),
    "torch encoder and decoder": _plain(
        lambda: nn.Transformer(16, 4, 1, 1, 32, batch_first=True),
        (tokens(2, 5, 16), tokens(2, 4, 16)),
        3,
    ),
    **{
        f"handmade {way}": _plain(functools.partial(Handmade, way), tokens(2, 5, 16), 1)
        for way in (
            "einsum",
            "module",
            "channels_first",
            "operator",
            "causal_cross",
            "grouped",
            "broadcast",
        )
    },
    **_both("vit", "ViT", _pixels(32), 2, image_size=32, patch_size=8, **_SMALL),
    **_both("deit", "DeiT", _pixels(32), 2, image_size=32, patch_size=8, **_SMALL),
    **_both("clip", "CLIPVision", _pixels(32), 2, image_size=32, patch_size=8, **_SMALL),
    **_both(
        "swin",
        "Swin",
        _pixels(32),
        3,
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[1, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    **_both(
        "bert",
        "Bert",
        lambda: {"input_ids": _IDS, "attention_mask": _MASK},
        2,
        **_TEXT,
        **_SMALL,
    ),
    **_both(
        "gpt2", "GPT2", lambda: {"input_ids": _IDS}, 2, n_embd=32, n_layer=2, n_head=4, **_TEXT
    ),
    **_both(
        "llama", "Llama", lambda: {"input_ids": _IDS}, 2, num_key_value_heads=2, **_TEXT, **_SMALL
    ),
    **_both(
        "albert", "Albert", lambda: {"input_ids": _IDS}, 2, embedding_size=16, **_TEXT, **_SMALL
    ),
}


def build(name):
    """Build one model, the same each time, with an input."""
    torch.manual_seed(0)
    model, x, n_layers = MODELS[name]()

    # At its initial values, attention is all but uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))

    return model.eval(), x, n_layers


def call(model, x):
    """Call a model as `attention.capture` does."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)
