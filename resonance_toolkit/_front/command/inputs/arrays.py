"""Arrays of an `.npz`: inputs and targets, images among them put into the form that torch has."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from resonance_toolkit._front.command.inputs.libraries import LoadedModel
from resonance_toolkit._front.command.inputs.source import Prepared, Source
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import Preparation

Pair = tuple[np.ndarray, np.ndarray]

_PAIRS = (("x", "y"), ("x_train", "y_train"))
_HELD_OUT = ("x_test", "y_test")
_CHANNELS = (1, 3, 4)


class ArraySource(Source):
    """Inputs and targets in memory.

    Args:
        name: For errors.
        pair: Inputs and targets.
        held_out: Another such pair, on which nothing is trained; None if there is none.
    """

    def __init__(self, name: str, pair: Pair, held_out: Pair | None = None) -> None:
        for x, y in (pair,) if held_out is None else (pair, held_out):
            _check_pair(name, x, y)
        self.pair = pair
        self.held_out = held_out

        image_shape = _channels_first(pair[0]).shape[1:]
        if len(image_shape) == 3:
            self.channels = image_shape[0]
            self.image_size = image_shape[1:]
        self.n_classes = _count_classes(pair[1])

    @classmethod
    def read(cls, path: Path) -> "ArraySource":
        """Read `x` and `y`, or `x_train` and `y_train`; nothing in the file is unpickled."""
        try:
            # numpy leaves a damaged archive open.
            with path.open("rb") as file, np.load(file) as archive:
                names = archive.files
                pairs = [
                    (archive[inputs], archive[targets])
                    for inputs, targets in (*_PAIRS, _HELD_OUT)
                    if inputs in names and targets in names
                ]
        except Exception as error:  # whatever a damaged or hostile file makes zip or numpy say
            raise Mistake(f"--data: {path} cannot be read: {_say_unread(path, error)}") from error

        if not any(set(pair) <= set(names) for pair in _PAIRS):
            raise Mistake(
                f"--data: {path} has {', '.join(names) or 'nothing'}; expected x and y, or x_train "
                "and y_train"
            )
        has_test = set(_HELD_OUT) <= set(names)
        return cls(str(path), pairs[0], pairs[-1] if has_test else None)

    def prepare(self, loaded: LoadedModel, options: Preparation) -> Prepared:
        """Give `(inputs, targets)` as tensors."""
        inputs, targets = _as_tensors(self.pair, loaded, options)
        words = f"{len(inputs)} samples {tuple(inputs.shape[1:])}"
        if self.held_out is None:
            return Prepared((inputs, targets), words)

        held_out = _as_tensors(self.held_out, loaded, options)
        return Prepared(
            (inputs, targets), f"{words}, and {len(held_out[0])} to measure on", held_out
        )


def _say_unread(path: Path, error: Exception) -> str:
    if not zipfile.is_zipfile(path):
        return "it is no .npz; expected what np.savez(path, x=..., y=...) writes"
    if "allow_pickle" in str(error):
        # numpy's own advice would run code of the file.
        return "it holds Python objects; expected arrays of numbers"
    return first_line(error)


def _as_tensors(pair: Pair, loaded: LoadedModel, options: Preparation) -> tuple[Tensor, Tensor]:
    x, y = pair
    inputs = torch.from_numpy(np.ascontiguousarray(_channels_first(x)))
    is_bytes = inputs.dtype == torch.uint8
    is_image = inputs.dim() == 4 and (is_bytes or inputs.is_floating_point())

    if is_bytes or inputs.is_floating_point() or inputs.dtype == torch.bool:
        inputs = inputs.float()
    else:
        inputs = inputs.long()  # tokens, or what else an embedding looks up

    if is_image and is_bytes:
        inputs = inputs / 255
    if is_image and options.image_size is not None:
        sides = (options.image_size, options.image_size)
        inputs = F.interpolate(inputs, sides, mode="bilinear", antialias=True)

    # Numbers that are no bytes have been prepared already, unless the user says how.
    is_asked = options.mean is not None or options.std is not None
    if is_image and (is_bytes or is_asked):
        inputs = standardise(inputs, options.or_else(loaded.preparation))

    targets = torch.from_numpy(np.ascontiguousarray(y))
    if targets.is_floating_point():
        return inputs, targets.float()
    targets = targets.long()
    is_column = targets.dim() == 2 and targets.shape[1] == 1
    return inputs, targets[:, 0] if is_column else targets


def _check_pair(name: str, x: np.ndarray, y: np.ndarray) -> None:
    for values in (x, y):
        if values.dtype.kind not in "biuf" or not values.ndim:
            kind = f"values of {values.dtype}" if values.ndim else "a single value"
            raise Mistake(f"--data: {name} has {kind}; expected arrays of numbers")
    if len(x) != len(y) or not len(x):
        raise Mistake(f"--data: {name} has {len(x)} inputs and {len(y)} targets; expected as many")


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
