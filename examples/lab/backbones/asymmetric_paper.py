"""The backbones of the asymmetric-training paper and where it attaches its branches.

The small ones are sized as the published parameter counts imply; those for ImageNet come from
torchvision and timm, without trained weights.
"""

from itertools import pairwise

import timm
import torchvision
from timm.models import VisionTransformer
from torch import nn

from lab.backbones.coatnet import coatnet

__all__ = [
    "LAYERS",
    "cnn",
    "coatnet",
    "mlp",
    "resnet18",
    "resnet50",
    "vit6",
    "vit_base",
    "vit_small",
]

# Where the paper attaches its branches, as patterns for `probes.attach`.
LAYERS = {
    "mlp": "blocks.[0-3]",
    "cnn": "features.*",
    "vit6": "blocks.*",
    "coatnet": "s3",  # table 26 has s2 as well, one at a time
    "resnet18": "layer[1-4]",  # this and the next three: table 21
    "resnet50": "layer[1-4]",
    "vit_small": "blocks.[258]",  # the third, sixth and ninth of twelve
    "vit_base": "blocks.[258]",
}


def mlp(classes: int = 10, *, inputs: int = 3072) -> nn.Sequential:
    """Six linear layers, ReLU between them; one block is a linear layer with its ReLU."""
    widths = [inputs, 64, 128, 256, 128, 64]
    blocks = [
        nn.Sequential(nn.Linear(width, next_width), nn.ReLU())
        for width, next_width in pairwise(widths)
    ]

    # By name, so that the patterns of LAYERS find the blocks.
    model = nn.Sequential()
    model.add_module("flatten", nn.Flatten())
    model.add_module("blocks", nn.Sequential(*blocks))
    model.add_module("head", nn.Linear(widths[-1], classes))
    return model


def cnn(classes: int = 100, *, channels: int = 3, dropout: float = 0.5) -> nn.Sequential:
    """Six 3x3 convolutions with two max-pools, global average pooling, three linear layers."""
    widths = [channels, 32, 64, 96, 192, 192, 256]
    features = []
    for index, (width, next_width) in enumerate(pairwise(widths), start=1):
        # Halve the map after the second and after the fourth convolution.
        convolution = nn.Conv2d(width, next_width, 3, padding=1)
        pool = [nn.MaxPool2d(2)] if index in (2, 4) else []
        features.append(nn.Sequential(convolution, nn.ReLU(), *pool))

    # One dropout, where the paper's list has it: after the pooling, before the linear layers.
    head = nn.Sequential(
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )

    model = nn.Sequential()
    model.add_module("features", nn.Sequential(*features))
    model.add_module("head", head)
    return model


def vit6(
    classes: int = 100, *, image: int = 32, patch: int = 4, channels: int = 3
) -> VisionTransformer:
    """A six-block vision transformer of width 128 with four heads and a class token."""
    return VisionTransformer(
        img_size=image,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        embed_dim=128,
        depth=6,
        num_heads=4,
        mlp_ratio=4,
    )


def resnet18(classes: int = 1000) -> torchvision.models.ResNet:
    """Torchvision's ResNet-18."""
    return torchvision.models.resnet18(num_classes=classes)


def resnet50(classes: int = 1000) -> torchvision.models.ResNet:
    """Torchvision's ResNet-50."""
    return torchvision.models.resnet50(num_classes=classes)


def vit_small(classes: int = 1000, *, image: int = 224, patch: int = 16) -> VisionTransformer:
    """Timm's ViT-S: twelve blocks of width 384 with six heads."""
    name = "vit_small_patch16_224"
    return timm.create_model(name, num_classes=classes, img_size=image, patch_size=patch)


def vit_base(classes: int = 1000, *, image: int = 224, patch: int = 16) -> VisionTransformer:
    """Timm's ViT-B/16: twelve blocks of width 768 with twelve heads."""
    name = "vit_base_patch16_224"
    return timm.create_model(name, num_classes=classes, img_size=image, patch_size=patch)
