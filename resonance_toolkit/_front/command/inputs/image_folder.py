"""A folder of images with one folder per class, read as they are needed."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from resonance_toolkit._front.command.inputs.arrays import standardise
from resonance_toolkit._front.command.inputs.libraries import IMAGENET, LoadedModel
from resonance_toolkit._front.command.inputs.source import Prepared, Source
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import Preparation

Files = dict[str, list[Path]]  # by class

_HELD_OUT = ("val", "test")
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


class FolderSource(Source):
    """File names by class. A folder with `train` inside is read there; `val` or `test` beside it
    are held out.
    """

    channels = 3

    def __init__(self, path: Path) -> None:
        root = path / "train" if (path / "train").is_dir() else path
        self.files = _list_classes(root)
        self.n_classes = len(self.files)
        if not self.files:
            some = " (its images lie in no such folder)" if _images_in(root, deep=False) else ""
            raise Mistake(
                f"--data: {root} has no folders with images in them{some}; expected one folder per "
                "class, such as cats/1.png and dogs/2.png"
            )

        self.held_out_files: Files = {}
        for name in _HELD_OUT if root != path else ():
            if (path / name).is_dir():
                self.held_out_files = _list_classes(path / name)
                _check_classes(path, name, self.held_out_files, self.files)
                break

    def prepare(self, loaded: LoadedModel, options: Preparation) -> Prepared:
        """Give a Dataset of standardised images and labels."""
        try:
            import PIL.Image  # noqa: F401  (told here, not at the first image)
        except ImportError as error:
            raise Mistake(
                "--data: images are read by pillow, which is not installed; run: "
                "pip install 'resonance-toolkit[examples]'"
            ) from error

        preparation = options.or_else(loaded.preparation).or_else(IMAGENET)
        images = ImageFiles(self.files, preparation)
        size = preparation.image_size
        words = f"{len(images)} images of {self.n_classes} classes, cut to {size} x {size} pixels"
        if not self.held_out_files:
            return Prepared(images, words)

        held_out = ImageFiles(self.held_out_files, preparation)
        return Prepared(images, f"{words}, and {len(held_out)} to measure on", held_out)


class ImageFiles(Dataset[tuple[Tensor, int]]):
    """Images `(3, size, size)` and labels, each file read when it is asked for."""

    def __init__(self, files: Files, preparation: Preparation) -> None:
        self.samples = [
            (path, label) for label, paths in enumerate(files.values()) for path in paths
        ]
        self.preparation = preparation

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.samples[index]
        size = self.preparation.image_size
        assert size is not None
        return standardise(_read_image(path, size), self.preparation), label


def _read_image(path: Path, size: int) -> Tensor:
    """Read an image, its shorter side resized and its middle cut out, black 0 and white 1."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            image = ImageOps.fit(file.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # whatever a damaged file makes pillow say
        raise Mistake(
            f"--data: {path} is not an image that can be read: {first_line(error)}"
        ) from error

    pixels = np.array(image, dtype=np.float32) / 255
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _list_classes(root: Path) -> Files:
    # Hidden folders are caches and versions, not classes; nor is a folder without images.
    folders = sorted(
        folder for folder in root.iterdir() if folder.is_dir() and folder.name[0] != "."
    )
    files = {folder.name: _images_in(folder) for folder in folders}
    return {name: paths for name, paths in files.items() if paths}


def _check_classes(path: Path, name: str, files: Files, expected: Files) -> None:
    if list(files) != list(expected):
        different = sorted(files.keys() ^ expected.keys())
        raise Mistake(
            f"--data: train and {name} of {path} have different classes, such as {different[0]}"
        )


def _images_in(folder: Path, *, deep: bool = True) -> list[Path]:
    paths = folder.rglob("*") if deep else folder.glob("*")
    return sorted(path for path in paths if path.suffix.lower() in _SUFFIXES)
