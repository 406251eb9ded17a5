"""Guesses of what a model takes, for a dry run without an input of the user's."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from resonance_toolkit import device_of

# Two samples: one alone would hide a layer whose output has no axis for samples.
_N_SAMPLES = 2

# Sides of square images: ImageNet, CIFAR, Tiny ImageNet, MNIST, Inception, and timm's larger ones.
_IMAGE_SIDES = (224, 32, 64, 28, 299, 384, 256)

# Frames of a clip and sides of its images, as torchvision's video models are trained.
_CLIP_SHAPES = ((16, 224, 224), (16, 112, 112))

_SIGNAL_LENGTH = 1024

# What the first of these modules takes says what the model takes.
_ENTRY_MODULES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def likely_inputs(root: nn.Module) -> Iterator[Tensor]:
    """Yield zeros of the shapes that a model of this kind usually takes, the likeliest first."""
    device = device_of(root)
    dtype = next((parameter.dtype for parameter in root.parameters()), torch.float32)

    for shape in _likely_shapes(root):
        yield torch.zeros(_N_SAMPLES, *shape, device=device, dtype=dtype)


def _likely_shapes(root: nn.Module) -> Iterator[tuple[int, ...]]:
    """Yield shapes of one sample."""
    entry = next((module for module in root.modules() if isinstance(module, _ENTRY_MODULES)), None)
    channels = entry.in_channels if isinstance(entry, nn.modules.conv._ConvNd) else 3

    # Vision transformers of timm and torchvision know their image size.
    for owner in (getattr(root, "patch_embed", None), root):
        image_size = getattr(owner, "img_size", None) or getattr(owner, "image_size", None)
        if image_size is not None:
            is_square = isinstance(image_size, int)
            height, width = (image_size, image_size) if is_square else image_size
            yield (channels, height, width)

    # Other models of timm carry the configuration that they were trained with.
    config = getattr(root, "pretrained_cfg", None) or getattr(root, "default_cfg", None) or {}
    input_size = config.get("input_size") if isinstance(config, dict) else None
    if input_size is not None:
        yield tuple(input_size)

    if isinstance(entry, nn.Linear):
        yield (entry.in_features,)
    elif isinstance(entry, nn.Conv3d):
        for clip_shape in _CLIP_SHAPES:
            yield (channels, *clip_shape)
    elif isinstance(entry, nn.Conv1d):
        yield (channels, _SIGNAL_LENGTH)
    elif entry is not None:
        for side in _IMAGE_SIDES:
            yield (channels, side, side)
