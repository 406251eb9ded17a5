"""Arrays of an `.npz`: inputs and targets, images among them put into the form that torch has."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from resonance_toolkit._front.command.libraries import LoadedModel
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import Preparation
from resonance_toolkit._front.command.source import Source

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_CHANNELS = (1, 3, 4)


class ArraySource(Source):
    """Inputs and targets in memory."""

    def __init__(
        self, name: str, x: np.ndarray, y: np.ndarray, *, is_standardised: bool = False
    ) -> None:
        if len(x) != len(y) or not len(x):
            raise Mistake(
                f"--data: {name} has {len(x)} inputs and {len(y)} targets; expected as many"
            )
        for values in (x, y):
            if values.dtype.kind not in "biuf":
                raise Mistake(f"--data: {name} has values of {values.dtype}; expected numbers")
        is_bytes = x.dtype == np.uint8
        self.name = name
        self.inputs = _channels_first(x)
        self.targets = y
        self.is_to_standardise = is_bytes and self.inputs.ndim == 4 and not is_standardised

        is_image = self.inputs.ndim == 4
        self.channels = int(self.inputs.shape[1]) if is_image else None
        self.image_size = (self.inputs.shape[2], self.inputs.shape[3]) if is_image else None
        self.n_classes = _count_classes(y)

    @classmethod
    def read(cls, path: Path) -> "ArraySource":
        """Read `x` and `y`, or `x_train` and `y_train`; nothing in the file is unpickled."""
        try:
            # numpy leaves a damaged archive open.
            with path.open("rb") as file, np.load(file) as archive:
                names = archive.files
                for inputs, targets in _PAIRS:
                    if inputs in names and targets in names:
                        return cls(str(path), archive[inputs], archive[targets])
        except Mistake:
            raise
        except Exception as error:  # whatever a damaged or hostile file makes zip or numpy say
            raise Mistake(f"--data: {path} cannot be read: {first_line(error)}") from error
        raise Mistake(
            f"--data: {path} has {', '.join(names) or 'nothing'}; expected x and y, or x_train and "
            "y_train"
        )

    def prepare(self, loaded: LoadedModel, asked: Preparation) -> tuple[Any, str]:
        """Give `(inputs, targets)` as tensors."""
        inputs = torch.from_numpy(np.ascontiguousarray(self.inputs))
        targets = torch.from_numpy(np.ascontiguousarray(self.targets))
        words = [f"{len(inputs)} samples {tuple(inputs.shape[1:])}"]

        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255 if inputs.dim() == 4 else inputs.float()
        elif inputs.is_floating_point():
            inputs = inputs.float()
        else:
            inputs = inputs.long()

        if inputs.dim() == 4 and inputs.is_floating_point():
            if asked.image_size is not None and inputs.shape[-2:] != (asked.image_size,) * 2:
                inputs = F.interpolate(
                    inputs, (asked.image_size,) * 2, mode="bilinear", antialias=True
                )
                words.append(f"resized to {asked.image_size} x {asked.image_size}")

            is_asked = asked.mean is not None or asked.std is not None
            if self.is_to_standardise or is_asked:
                inputs = standardise(inputs, asked.or_else(loaded.preparation))

        if not targets.is_floating_point():
            targets = targets.long()
        if targets.dim() == 2 and targets.shape[1] == 1 and not targets.is_floating_point():
            targets = targets[:, 0]
        return (inputs, targets), ", ".join(words)


def standardise(images: Tensor, preparation: Preparation) -> Tensor:
    """Subtract each channel's mean and divide by its deviation.

    Raises:
        Mistake: If these are given for another number of channels.
    """
    n_channels = images.shape[-3]
    mean = _per_channel("--mean", preparation.mean or (0.0,), n_channels)
    std = _per_channel("--std", preparation.std or (1.0,), n_channels)
    return (images - mean) / std


def _per_channel(option: str, values: tuple[float, ...], n_channels: int) -> Tensor:
    if len(values) not in (1, n_channels):
        # Those of the three colours, for grey images: what they are on the whole.
        if n_channels != 1:
            raise Mistake(
                f"{option}: expected 1 or {n_channels} numbers, one for each channel, got "
                f"{len(values)}"
            )
        values = (sum(values) / len(values),)
    return torch.tensor(values).view(-1, 1, 1)


def _channels_first(x: np.ndarray) -> np.ndarray:
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return x
    if x.ndim == 3:
        return x[:, None]
    is_last = x.shape[-1] in _CHANNELS and x.shape[1] not in _CHANNELS
    return x.transpose(0, 3, 1, 2) if is_last else x


def _count_classes(y: np.ndarray) -> int | None:
    """Count classes; None where targets are none, such as real numbers."""
    if y.dtype.kind in "iu" and y.size and y.min() >= -100:
        is_by_class = y.ndim == 2 and y.shape[1] > 1 and y.max() <= 1
        return int(y.shape[1]) if is_by_class else int(y.max()) + 1
    return None
