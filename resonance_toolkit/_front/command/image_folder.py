"""A folder of images with one folder per class, read as they are needed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from resonance_toolkit._front.command.arrays import standardise
from resonance_toolkit._front.command.libraries import IMAGENET, LoadedModel
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import Preparation
from resonance_toolkit._front.command.source import Source

_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class FolderSource(Source):
    """File names and labels; a folder with `train` inside is read there."""

    channels = 3

    def __init__(self, path: Path) -> None:
        root = path / "train" if (path / "train").is_dir() else path
        # Hidden folders are caches and versions, not classes.
        folders = sorted(
            folder for folder in root.iterdir() if folder.is_dir() and folder.name[0] != "."
        )
        files = [_images_in(folder) for folder in folders]

        if not any(files):
            some = " (its images lie in no such folder)" if _images_in(root, deep=False) else ""
            raise Mistake(
                f"--data: {root} has no folders with images in them{some}; expected one folder per "
                "class, such as cats/1.png and dogs/2.png"
            )
        # A folder without images is no class.
        self.classes = [folder.name for folder, paths in zip(folders, files, strict=True) if paths]
        self.files = [paths for paths in files if paths]
        self.n_classes = len(self.classes)

    def prepare(self, loaded: LoadedModel, asked: Preparation) -> tuple[Any, str]:
        """Give a Dataset of standardised images and labels."""
        try:
            import PIL.Image  # noqa: F401  (told here, not at the first image)
        except ImportError as error:
            raise Mistake(
                "--data: images are read by pillow, which is not installed; run: "
                "pip install 'resonance-toolkit[examples]'"
            ) from error

        preparation = asked.or_else(loaded.preparation).or_else(IMAGENET)
        images = ImageFiles(self.files, preparation)
        size = preparation.image_size
        return images, (
            f"{len(images)} images of {self.n_classes} classes, cut to {size} x {size} pixels"
        )


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images `(3, size, size)` and labels, each file read when it is asked for."""

    def __init__(self, files: list[list[Path]], preparation: Preparation) -> None:
        self.samples = [(path, label) for label, paths in enumerate(files) for path in paths]
        self.preparation = preparation

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        size = self.preparation.image_size
        assert size is not None
        return standardise(_read(path, size), self.preparation), label


def _read(path: Path, size: int) -> Tensor:
    """Read an image, its shorter side resized and its middle cut out, black 0 and white 1."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            image = ImageOps.fit(file.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # whatever a damaged file makes pillow say
        raise Mistake(
            f"--data: {path} is no image that can be read: {first_line(error)}"
        ) from error

    pixels = np.array(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _images_in(folder: Path, *, deep: bool = True) -> list[Path]:
    paths = folder.rglob("*") if deep else folder.glob("*")
    return sorted(path for path in paths if path.suffix.lower() in _SUFFIXES)
