"""Batches of images by row number: from memory, or from files through a DataLoader."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lab.data.augment import augment_images
from lab.data.images import Images


def batches(
    images: Images, part: str, groups: Sequence[Tensor], *, augment: bool = False, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs `(x, y)`, one for each group of rows.

    Args:
        images: Where from.
        part: "train" or "test".
        groups: Row numbers of each batch.
        augment: Random crops and horizontal flips: `augment_images` in memory, resized crops of
            files.
        seed: Decides them.
    """
    x, y = images.part(part)
    generator = torch.Generator().manual_seed(seed)

    if not isinstance(x, Tensor):
        files = _ImageFiles(x, y, images.image, augment)
        # Small sets do not repay the time that workers take to start.
        workers = min(8, os.cpu_count() or 1) if len(x) > 1000 else 0

        # The groups are the batches: the loader has nothing to shuffle or to cut.
        lists = [group.tolist() for group in groups]
        yield from DataLoader(files, batch_sampler=lists, num_workers=workers, generator=generator)
        return

    for rows in groups:
        batch = x[rows]
        yield (augment_images(batch, generator) if augment else batch), y[rows]


class _ImageFiles(Dataset[tuple[Tensor, Tensor]]):
    """Images read from files: standard crops, no heavy augmentation."""

    def __init__(self, names: Any, labels: Tensor, size: int, augment: bool) -> None:
        from torchvision.transforms import v2

        crop: list[Any] = [v2.Resize(size * 256 // 224), v2.CenterCrop(size)]
        if augment:
            crop = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]

        to_float = v2.ToDtype(torch.float32, scale=True)
        # Mean and standard deviation of ImageNet's colours, as torchvision's models have them.
        normalise = v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        self.transform = v2.Compose([v2.PILToTensor(), *crop, to_float, normalise])

        self.names = names
        self.labels = labels

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        from PIL import Image

        with Image.open(self.names[row]) as picture:
            return self.transform(picture.convert("RGB")), self.labels[row]
