"""Images and labels for the examples: scikit-learn's digits, or an .npz such as CIFAR-10."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Training and test images `(sample, channel, height, width)`, standardised, with labels."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """How many classes the training labels have."""
        return int(self.y_train.max()) + 1

    @property
    def image(self) -> int:
        """Height (and width) of an image."""
        return self.x_train.shape[-1]

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.x_train.shape[1]


def load(path: Path | None) -> Images:
    """The .npz at `path`, or the digits if there is none."""
    return digits() if path is None else load_npz(path)


def digits(*, seed: int = 0) -> Images:
    """Scikit-learn's 1797 bundled 8 x 8 digits, four fifths for training, stratified."""
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    parts = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    x_train, x_test, y_train, y_test = parts
    return _standardised(x_train, y_train, x_test, y_test)


def load_npz(path: Path) -> Images:
    """Images from an archive with x_train, y_train, x_test, y_test; uint8, channels last.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If an array is missing, or not `(sample, height, width[, channel])`.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"`data`: no file {path}; expected an .npz with x_train, y_train, "
            "x_test, y_test, or no path at all for the bundled digits"
        )
    with np.load(path) as archive:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(archive.files)
        if missing:
            raise ValueError(f"`data`: {path} lacks {', '.join(sorted(missing))}")
        images = [_channels_first(archive[name], name) for name in ("x_train", "x_test")]
        labels = [archive[name] for name in ("y_train", "y_test")]
    return _standardised(images[0], labels[0], images[1], labels[1])


def _channels_first(images: np.ndarray, name: str) -> np.ndarray:
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4:
        raise ValueError(f"`data` at {name}: expected 3 or 4 axes, got shape {images.shape}")
    return images.transpose(0, 3, 1, 2).astype(np.float32) / 255


def _standardised(
    x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Images:
    mean = x_train.mean((0, 2, 3), keepdims=True)
    std = x_train.std((0, 2, 3), keepdims=True)
    x_train, x_test = (x_train - mean) / std, (x_test - mean) / std
    return Images(
        torch.from_numpy(x_train),
        torch.from_numpy(y_train.astype(np.int64)),
        torch.from_numpy(x_test),
        torch.from_numpy(y_test.astype(np.int64)),
    )
