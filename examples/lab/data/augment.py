"""The crop-and-mirror augmentation of CIFAR training, a batch at a time."""

import torch
from torch import Tensor


def augment_images(x: Tensor, generator: torch.Generator) -> Tensor:
    """Shift images by up to an eighth of their size, and mirror half of them, in one gather.

    Args:
        x: `(sample, channel, height, width)`. What comes in at the border is the darkest value of
            each channel in the batch: black, where images are normalised.
        generator: Decides shifts and mirrors.
    """
    count, channels, height, width = x.shape
    margin = min(height, width) // 8
    padded_width = width + 2 * margin

    darkest = x.amin((0, 2, 3))[:, None, None]
    padded = x.new_empty(count, channels, height + 2 * margin, padded_width)
    padded.copy_(darkest.expand_as(padded))
    padded[:, :, margin : margin + height, margin : margin + width] = x

    # Which row and column of the padded image each pixel of the result comes from.
    top_edge, left_edge = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    columns = left_edge + torch.arange(width)
    is_mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(is_mirrored, columns.flip(1), columns)
    rows = top_edge + torch.arange(height)

    # The place of each pixel in its flattened, padded image.
    pixels = (rows[:, :, None] * padded_width + columns[:, None]).view(count, 1, -1).to(x.device)
    return padded.flatten(2).gather(2, pixels.expand(-1, channels, -1)).view_as(x)
