"""A small vision transformer with uneven attention."""

import timm
import torch

import attention


def small_vit(**settings):
    """Sixteen patches and a class token; `settings` are those of timm's `VisionTransformer`."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3}
    model = timm.models.VisionTransformer(num_classes=5, **sizes | settings)

    # At its initial values, attention is all but uniform.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))

    return model.eval()


def all_maps(model, x, **settings):
    """Every weight `(sample, layer, head, query, key)`, zero where a mask hides it."""
    captured = attention.capture(model, x, queries="all", keys="all", maps=True, **settings)
    return captured["weight"].fillna(0).values
