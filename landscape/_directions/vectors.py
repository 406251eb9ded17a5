"""Directions as vectors: how to orthogonalise, normalise and measure them.

A direction is a mapping of tensors by parameter name. It may be a plain dictionary or a
`RowwiseDirection`, which works its tensors out when asked; inner products take either kind, a few
rows at a time, and sum in float64 where the device has it.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from landscape._directions.parameters import Params, filter_norm, tensor_norm
from resonance_toolkit import to_host, widest_float

Direction = Mapping[str, Tensor]
Normalisation = Literal["filter", "layer", "tensor", "unit", "none"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)

# Numbers handled at a time: in float64, 2 MB. Widening a whole layer would be another copy of it.
ROW_BUDGET = 2**18


class RowwiseDirection(Mapping[str, Tensor]):
    """A direction that gives some rows of its tensors without making the others."""

    @abstractmethod
    def shape_of(self, name: str) -> torch.Size:
        """Shape of a tensor, without making it."""

    @abstractmethod
    def materialise_rows(self, name: str, rows: slice) -> Tensor:
        """Some rows of a tensor, written out."""


def read_direction(
    direction: Direction, tensors: Params, *, copy: bool, argument: str = "directions"
) -> Params:
    """Check that a user's direction fits the tensors, and bring it to their device and dtype.

    Args:
        direction: Tensors by name.
        tensors: What they must fit.
        copy: Whether to copy tensors that could be used as they are.
        argument: What the user calls it, for errors.
    """
    for name, value in direction.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"`{argument}` at {name!r}: expected a tensor, got {type(value).__name__}"
            )

    for name in sorted(tensors.keys() | direction.keys()):
        expected = tuple(tensors[name].shape) if name in tensors else "nothing (it does not move)"
        actual = tuple(direction[name].shape) if name in direction else "nothing"
        if actual != expected:
            raise ValueError(f"`{argument}` at {name!r}: expected {expected}, got {actual}")
        if not torch.isfinite(direction[name]).all():
            raise ValueError(f"`{argument}` at {name!r}: expected finite numbers, got NaN or inf")

    # A direction made of the weights themselves would move along with them: it is copied.
    weight_addresses = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    fitting_tensors = {}
    for name, tensor in tensors.items():
        is_alias = direction[name].untyped_storage().data_ptr() in weight_addresses
        fitting_tensors[name] = (
            direction[name].detach().to(tensor.device, tensor.dtype, copy=copy or is_alias)
        )
    return fitting_tensors


def orthogonalise(axes: Sequence[Params]) -> None:
    """Make the second direction orthogonal to the first, in place (Gram-Schmidt)."""
    first, second = axes
    squared_length = dot(first, first)

    # Twice: once leaves the round-off of nearly parallel directions.
    for _ in range(2):
        share = dot(first, second) / squared_length if squared_length else 0.0
        for name, tensor in second.items():
            tensor.sub_(first[name], alpha=share)


def normalising_factors(
    direction: Direction,
    tensors: Params,
    modules: Mapping[str, nn.Module],
    normalisation: str,
) -> Params:
    """What to multiply a direction by.

    `filter` and `layer` give it the norms of the weights; `unit` norm 1 as one vector; `tensor`
    makes all its tensors equally long, and the whole of norm 1. A filter, layer or tensor whose
    weights or whose direction are zero gets the zero direction.

    Args:
        direction: Tensors by name.
        tensors: The weights, by the same names.
        modules: Their owners, which tell what a filter is.
        normalisation: One of `NORMALISATIONS`.
    """
    if normalisation in ("unit", "none"):
        factor = 1 / (norm(direction) or 1.0) if normalisation == "unit" else 1.0
        return {
            name: torch.full((), factor, dtype=tensor.dtype, device=tensor.device)
            for name, tensor in tensors.items()
        }

    if normalisation == "tensor":
        return _equalising_factors(direction, tensors, modules)

    factors = {}
    for name, weights in tensors.items():
        # Without owner and name a tensor is one filter: the layer itself.
        owner = modules.get(name) if normalisation == "filter" else None
        filter_name = name if normalisation == "filter" else ""

        weight_norm = filter_norm(weights.detach(), owner, filter_name)
        direction_norm = filter_norm(direction[name], owner, filter_name)
        factors[name] = torch.where(direction_norm > 0, weight_norm / direction_norm, 0.0)
    return factors


def _equalising_factors(
    direction: Direction, tensors: Params, modules: Mapping[str, nn.Module]
) -> Params:
    norms = {name: tensor_norm(direction[name], modules.get(name), name) for name in tensors}

    # Unit tensors, T of them, are together of norm sqrt(T). One that is zero stays so.
    n_tensors = sum(int((norms_of_one > 0).sum()) for norms_of_one in norms.values())
    length = 1 / math.sqrt(n_tensors or 1)
    return {
        name: torch.where(norms_of_one > 0, length / norms_of_one, 0.0)
        for name, norms_of_one in norms.items()
    }


def normalise(
    direction: Params, tensors: Params, modules: Mapping[str, nn.Module], normalisation: str
) -> None:
    """Scale a direction in place; see `normalising_factors`."""
    if normalisation == "none":
        return
    for name, factor in normalising_factors(direction, tensors, modules, normalisation).items():
        direction[name].mul_(factor)


def dot(a: Direction, b: Direction) -> float:
    """Inner product, summed in float64 where the device has it."""
    partial_sums: list[Tensor] = []
    for name in a:
        shape = a.shape_of(name) if isinstance(a, RowwiseDirection) else a[name].shape
        for rows in row_slices(shape):
            a_rows = materialise_rows(a, name, rows).flatten()
            b_rows = materialise_rows(b, name, rows).flatten()
            wide = widest_float(a_rows.device)
            partial_sums.append(torch.dot(a_rows.to(wide), b_rows.to(wide)))
    return math.fsum(partial_sum.item() for partial_sum in to_host(partial_sums))


def norm(direction: Direction) -> float:
    """Euclidean length, summed in float64."""
    return math.sqrt(dot(direction, direction))


def cosine(a: Direction, b: Direction) -> float:
    """Cosine between two directions; NaN if one is zero."""
    lengths = norm(a) * norm(b)
    return dot(a, b) / lengths if lengths else math.nan


def materialise_rows(direction: Direction, name: str, rows: slice) -> Tensor:
    """Some rows of a direction, written out."""
    if isinstance(direction, RowwiseDirection):
        return direction.materialise_rows(name, rows)
    return take_rows(direction[name], rows)


def row_slices(shape: torch.Size) -> list[slice]:
    """Cut a tensor of this shape into pieces of whole rows, few numbers each."""
    if shape.numel() <= ROW_BUDGET:
        return [slice(None)]
    step = max(1, ROW_BUDGET * shape[0] // shape.numel())
    return [slice(begin, begin + step) for begin in range(0, shape[0], step)]


def take_rows(tensor: Tensor, rows: slice) -> Tensor:
    """A view of some rows; of a single number, the number."""
    return tensor[rows] if tensor.dim() else tensor
