"""Numbers of each sample, and how they become a labelled Dataset.

Inside the package, what is measured of a batch is a tensor whose last axis is the samples; over all
batches it becomes an array of float64 with the same axes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from nudging._replay.padding import zero_padding
from nudging._replay.state import State
from resonance_toolkit import widest_float

Array: TypeAlias = NDArray[np.float64]
Attributes: TypeAlias = dict[str, str | int | float]


def concatenate_batches(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Array]:
    """Join the numbers of all batches along the last axis, the samples.

    They are on the CPU already. Numbers by position, `(position, feature, ...)`, are filled up with
    zeros at the end, as if all texts had been padded to one length.
    """
    return {
        name: torch.cat(_fill_up([part[name].double() for part in parts]), -1).numpy()
        for name in parts[0]
    }


def without_padding(state: State, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors like the outputs of blocks, with zeros at padded positions."""
    return {name: zero_padding(tensor, state.positions(name)) for name, tensor in tensors.items()}


def norms(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the length of each sample's tensor, `(layer, sample)`."""
    lengths = []
    for tensor in tensors.values():
        rows, largest = _divide_by_largest(tensor)
        lengths.append(largest[:, 0] * rows.norm(dim=1))
    return stack_blocks(lengths)


def normalise(
    tensor: Tensor, normalisation: Literal["rms", "unit"], positions: Tensor | None = None
) -> Tensor:
    """Divide each sample by its root mean square or its norm, in double precision.

    What is zero stays zero.

    Args:
        tensor: Samples first, with zeros at padded positions.
        normalisation: The root mean square, or the norm.
        positions: Those that count, `(sample, position)`; all by default.
    """
    # Dividing by the largest number first changes the length of a sample, but no direction.
    rows, largest = _divide_by_largest(tensor)
    size = rows.norm(dim=1, keepdim=True)
    if normalisation == "rms":
        size = size / _count_numbers(rows, positions) ** 0.5
    return (rows / torch.where(largest > 0, size, 1.0)).reshape(tensor.shape)


def inner_products(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Tensor:
    """Return the inner products of each sample's tensors, `(layer, sample)`."""
    pairs = zip(left.values(), right.values(), strict=True)
    return stack_blocks([(_widen(a) * _widen(b)).flatten(1).sum(1) for a, b in pairs])


def stack_blocks(rows: Sequence[Tensor]) -> Tensor:
    """Stack what was measured of each block, `(layer, ...)`; blocks may be on several devices."""
    return torch.stack([row.to(rows[0].device) for row in rows])


def subtract_losses(after: Tensor, before: Tensor) -> Tensor:
    """Return `after - before`, in double precision where there is one: it loses digits."""
    return _widen(after) - _widen(before)


def standard_error(values: Array) -> Array:
    """Return that of the mean over the last axis, NaN for one sample."""
    n_samples = values.shape[-1]
    if n_samples < 2:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(values.std(-1, ddof=1) / np.sqrt(n_samples))


def make_dataset(
    variables: Mapping[str, tuple[Any, Any, str]],
    coordinates: Mapping[str, tuple[Any, str]],
    attributes: Mapping[str, str | int | float],
) -> xr.Dataset:
    """Put names of axes and long names where xarray expects them.

    Args:
        variables: By name: dimensions, values, long name.
        coordinates: By name, which is that of the dimension: values, long name.
        attributes: Of the Dataset.
    """
    return xr.Dataset(
        {
            name: (dims, values, {"long_name": long_name})
            for name, (dims, values, long_name) in variables.items()
        },
        coords={
            name: (name, values, {"long_name": long_name})
            for name, (values, long_name) in coordinates.items()
        },
        attrs=dict(attributes),
    )


def layer_coordinate(blocks: Sequence[str]) -> tuple[list[str], str]:
    """Return values and long name of the coordinate that all measures share."""
    return list(blocks), "name of the module, in the order in which the blocks run"


def _fill_up(tensors: list[Tensor]) -> list[Tensor]:
    shapes = {tensor.shape[:-1] for tensor in tensors}
    if len(shapes) == 1:
        return tensors

    if any(len(shape) < 2 for shape in shapes) or len({shape[1:] for shape in shapes}) > 1:
        listing = " and ".join(str(tuple(shape)) for shape in sorted(shapes))
        raise ValueError(
            f"`data`: expected batches whose gradients can be compared, got {listing}; give "
            "samples of one shape"
        )
    longest = max(len(tensor) for tensor in tensors)
    return [
        torch.cat([tensor, tensor.new_zeros(longest - len(tensor), *tensor.shape[1:])])
        for tensor in tensors
    ]


def _count_numbers(rows: Tensor, positions: Tensor | None) -> Tensor | int:
    """Return how many numbers of each sample count, `(sample, 1)`, or of all alike."""
    if positions is None:
        return rows.shape[1]
    width = rows.shape[1] // positions.shape[1]
    return (positions.sum(1, keepdim=True) * width).to(rows)


def _widen(tensor: Tensor) -> Tensor:
    """Return it in double precision, where its device has that."""
    return tensor.to(widest_float(tensor.device))


def _divide_by_largest(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's numbers over the largest of them, and that one.

    Tiny and huge numbers have no squares, even in double precision.
    """
    rows = _widen(tensor).flatten(1)
    largest = rows.abs().amax(1, keepdim=True)
    return rows / torch.where(largest > 0, largest, 1.0), largest
