"""A small vision transformer with uneven attention."""

import timm
import torch

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
