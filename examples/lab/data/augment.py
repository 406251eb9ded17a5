"""The crop-and-mirror augmentation of CIFAR training, a batch at a time."""

import torch
from torch import Tensor


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by up to an eighth of their size, and mirror half of them, in one gather.

    Args:
        x: `(sample, channel, height, width)`. What comes in at the border is the darkest value of
            each channel in the batch: black, where images are normalised.
        generator: Decides shifts and mirrors.
    """
    count, channels, height, width = x.shape
    margin = min(height, width) // 8
    wide = width + 2 * margin
    padded = x.new_empty(count, channels, height + 2 * margin, wide)
    padded.copy_(x.amin((0, 2, 3))[:, None, None].expand_as(padded))
    padded[:, :, margin : margin + height, margin : margin + width] = x
    down, across = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    columns = across + torch.arange(width)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    rows = down + torch.arange(height)
    where = (rows[:, :, None] * wide + columns[:, None]).view(count, 1, -1).to(x.device)
    return padded.flatten(2).gather(2, where.expand(-1, channels, -1)).view_as(x)
