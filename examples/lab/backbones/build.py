"""Backbones of the asymmetric-training paper by name, sized for the images at hand."""

from torch import nn

from lab.backbones.asymmetric_paper import (
    LAYERS,
    cnn,
    mlp,
    resnet18,
    resnet50,
    vit6,
    vit_base,
    vit_small,
)
from lab.backbones.coatnet import coatnet

# Torchvision's and timm's networks take three channels; the others take what there is.
COLOUR_ONLY = ("resnet18", "resnet50", "vit_small", "vit_base")


def build_backbone(name: str, classes: int, *, image: int, channels: int) -> nn.Module:
    """Build a backbone, initialised by the global random state.

    Args:
        name: One of `lab.backbones.asymmetric_paper.LAYERS`.
        classes: Number of logits.
        image: Height and width of the images.
        channels: Of the images; three for those of `COLOUR_ONLY`.

    Raises:
        ValueError: If there is no such backbone.
    """
    match name:
        case "mlp":
            return mlp(classes, inputs=channels * image**2)
        case "cnn":
            return cnn(classes, channels=channels)
        case "vit6":
            # 8 x 8 patches, as on the paper's 32 x 32 images; 4 x 4 of the small digits.
            return vit6(classes, image=image, patch=max(image // 8, 2), channels=channels)
        case "coatnet":
            return coatnet(classes, image=image, channels=channels)
        case "resnet18":
            return resnet18(classes)
        case "resnet50":
            return resnet50(classes)
        case "vit_small":
            return vit_small(classes, image=image, patch=_imagenet_patch(image))
        case "vit_base":
            return vit_base(classes, image=image, patch=_imagenet_patch(image))
    raise ValueError(f"`backbone`: expected one of {', '.join(LAYERS)}, got {name!r}")


def _imagenet_patch(image: int) -> int:
    # Images too small for patches of 16 are cut into four.
    return 16 if image >= 64 else image // 2
