from collections.abc import Iterator

import torch
from torch import Tensor, nn

from resonance_toolkit import device_of

_BATCH = 2
_SIZES = (224, 32, 64, 28, 299, 384, 256)
_ENTRIES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def likely_inputs(root: nn.Module) -> Iterator[Tensor]:
    """Inputs that a model of this kind usually takes, the likeliest first."""
    device, dtype = device_of(root), next((p.dtype for p in root.parameters()), torch.float32)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(_BATCH, *shape, device=device, dtype=dtype)

    config = getattr(root, "pretrained_cfg", None) or getattr(root, "default_cfg", None) or {}
    size = config.get("input_size") if isinstance(config, dict) else None
    first = next((m for m in root.modules() if isinstance(m, _ENTRIES)), None)
    channels = first.in_channels if isinstance(first, nn.modules.conv._ConvNd) else 3
    for owner in (getattr(root, "patch_embed", None), root):
        known = getattr(owner, "img_size", None) or getattr(owner, "image_size", None)
        if known is not None:
            height, width = (known, known) if isinstance(known, int) else known
            yield zeros(channels, height, width)
    if size is not None:
        yield zeros(*size)
    if isinstance(first, nn.Linear):
        yield zeros(first.in_features)
    elif isinstance(first, nn.Conv3d):
        yield zeros(channels, 16, 224, 224)
        yield zeros(channels, 16, 112, 112)
    elif isinstance(first, nn.Conv1d):
        yield zeros(channels, 1024)
    elif first is not None:
        for side in _SIZES:
            yield zeros(channels, side, side)
