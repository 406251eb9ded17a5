"""Images and labels for the examples: digits, torchvision's sets, an .npz, or a folder tree."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

# Names that torchvision reads, below the folder that RESONANCE_DATA names ("data" if unset).
SETS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}


@dataclass(frozen=True)
class Images:
    """Training and test images `(sample, channel, height, width)`, standardised, with labels.

    Or, from a folder tree, arrays `(sample,)` of file names, read as they are needed.

    Attributes:
        size: Of images that are still files.
        channel_means, channel_deviations: Of the training images before they were standardised,
            black 0 and white 1; by these a set can be told.
    """

    x_train: Any
    y_train: Tensor
    x_test: Any
    y_test: Tensor
    size: int | None = None
    channel_means: tuple[float, ...] = ()
    channel_deviations: tuple[float, ...] = ()

    def part(self, name: str) -> tuple[Any, Tensor]:
        """Images and labels of "train" or "test"."""
        return {
            "train": (self.x_train, self.y_train),
            "test": (self.x_test, self.y_test),
        }[name]

    @property
    def classes(self) -> int:
        """How many classes the labels have."""
        return int(max(self.y_train.max(), self.y_test.max())) + 1

    @property
    def image(self) -> int:
        """Height (and width) of an image."""
        return int(self.x_train.shape[-1]) if self.size is None else self.size

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return int(self.x_train.shape[1]) if self.size is None else 3

    @property
    def fingerprint(self) -> str:
        """A hash of all labels and of some hundred images (of the names, if they are files)."""
        digest = hashlib.blake2b(digest_size=8)

        for name in ("train", "test"):
            x, y = self.part(name)
            digest.update(y.numpy().tobytes())
            if isinstance(x, Tensor):
                some_images = x[:: max(len(x) // 100, 1)]
                digest.update(some_images.numpy().tobytes())
            else:
                # Class folder and file name: where the tree lies does not matter.
                names = ("/".join(Path(name).parts[-2:]) for name in x.tolist())
                digest.update("".join(names).encode())

        return digest.hexdigest()


# Two sets, since some scripts go back and forth between CIFAR-10 and CIFAR-100.
@lru_cache(maxsize=2)
def load(source: str | Path | None = None) -> Images:
    """Load images by name or path.

    Args:
        source: "digits" (or None); "cifar10", "cifar100", "fashion-mnist"; an .npz with x_train,
            y_train, x_test, y_test (uint8, channels last); or a folder with `train/<class>/` and
            `val/<class>/`, such as ImageNet-1k.

    Raises:
        FileNotFoundError: If it is not there; says how to get it.
    """
    if source is None or source == "digits":
        return digits()
    if str(source) in SETS:
        return load_set(str(source))

    path = Path(source)
    return load_folder(path) if path.is_dir() else load_npz(path)


def digits(*, seed: int = 0) -> Images:
    """Load scikit-learn's 1797 bundled 8 x 8 digits, four fifths for training, stratified."""
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8).astype(np.float32) / 16  # their grey levels go from 0 to 16

    parts = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    x_train, x_test, y_train, y_test = parts
    return _standardise(x_train, y_train, x_test, y_test)


def load_npz(path: Path) -> Images:
    """Load images from an archive with x_train, y_train, x_test, y_test; uint8, channels last.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing, or not `(sample, height, width[, channel])`.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`data`: no file {path}; expected an .npz with x_train, y_train, x_test, y_test "
            "(make one with numpy.savez), a folder with train/ and val/, one of "
            f"{', '.join(SETS)}, or digits, which need no file"
        )

    with np.load(path) as archive:
        missing_names = {"x_train", "y_train", "x_test", "y_test"} - set(archive.files)
        if missing_names:
            raise ValueError(f"`data`: {path} lacks {', '.join(sorted(missing_names))}")

        x_train = _to_channels_first(archive["x_train"], "x_train")
        x_test = _to_channels_first(archive["x_test"], "x_test")
        return _standardise(x_train, archive["y_train"], x_test, archive["y_test"])


def load_set(name: str) -> Images:
    """Load one of torchvision's sets, as downloaded before; nothing is fetched here."""
    import torchvision.datasets

    root = os.environ.get("RESONANCE_DATA", "data")
    set_class = getattr(torchvision.datasets, SETS[name])
    try:
        train = set_class(root, train=True, download=False)
        test = set_class(root, train=False, download=False)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"`data`: no {name} below {Path(root).resolve()}; get it once, with a network, by "
            f'`python -c "import torchvision; torchvision.datasets.{SETS[name]}({root!r}, '
            'download=True)"`, or set RESONANCE_DATA to the folder that has it'
        ) from error

    x_train = _to_channels_first(np.asarray(train.data), name)
    x_test = _to_channels_first(np.asarray(test.data), name)
    return _standardise(x_train, np.asarray(train.targets), x_test, np.asarray(test.targets))


def load_folder(path: Path, *, size: int = 224) -> Images:
    """List file names and labels of a tree `train/<class>/*`, `val/<class>/*`.

    Raises:
        FileNotFoundError: If a part of the tree is missing.
        ValueError: If the two parts have different classes.
    """
    from torchvision.datasets import ImageFolder

    for part in ("train", "val"):
        if not (path / part).is_dir():
            raise FileNotFoundError(
                f"`data`: no folder {path / part}; expected one folder per class in train/ and in "
                "val/ (ImageNet-1k: register at image-net.org, unpack, sort val/ into classes)"
            )

    train = ImageFolder(path / "train")
    test = ImageFolder(path / "val")
    if train.classes != test.classes:
        raise ValueError(f"`data`: train/ and val/ of {path} have different classes")

    # Names alone: all images of ImageNet do not fit into memory.
    return Images(
        np.array([name for name, _ in train.samples]),
        torch.tensor(train.targets),
        np.array([name for name, _ in test.samples]),
        torch.tensor(test.targets),
        size,
    )


def _to_channels_first(images: np.ndarray, name: str) -> np.ndarray:
    # Grey images come without an axis of channels.
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise ValueError(f"`data` at {name}: expected 3 or 4 axes, got shape {images.shape}")
    return images.transpose(0, 3, 1, 2).astype(np.float32) / 255


def _standardise(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Images:
    # By the training images alone, each channel by itself. Summed in double precision: a float32
    # sum over the 51 million numbers of a channel of CIFAR stops growing at 2**24.
    axes = (0, 2, 3)
    mean = x_train.mean(axes, dtype=np.float64, keepdims=True).astype(np.float32)
    variance = np.square(x_train - mean).mean(axes, dtype=np.float64, keepdims=True)
    std = np.sqrt(variance).astype(np.float32)

    return Images(
        torch.from_numpy((x_train - mean) / std),
        torch.from_numpy(y_train.astype(np.int64)),
        torch.from_numpy((x_test - mean) / std),
        torch.from_numpy(y_test.astype(np.int64)),
        channel_means=tuple(mean.ravel().tolist()),
        channel_deviations=tuple(std.ravel().tolist()),
    )
