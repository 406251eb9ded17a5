"""The quickstart's network."""

from timm.models import VisionTransformer


def tiny_vit(classes: int = 10, *, image: int = 8, channels: int = 1) -> VisionTransformer:
    """Four blocks of width 64 over 4 x 4 patches."""
    return VisionTransformer(
        img_size=image,
        patch_size=image // 4,
        in_chans=channels,
        num_classes=classes,
        embed_dim=64,
        depth=4,
        num_heads=4,
    )
