"""Directions in parameter space: given ones, and how to orthogonalise, normalise and measure."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from landscape._directions.parameters import Params, filter_norm
from landscape._directions.random_directions import Direction, Drawn, row_slices, rows_of

NORMALISATIONS = ("filter", "layer", "unit", "none")


def given_direction(given: Direction, moving: Params, *, copy: bool) -> Params:
    """Check that a direction fits the tensors that move, and bring it to their device and dtype.

    Args:
        given: Tensors by name.
        moving: What they must fit.
        copy: Whether to copy tensors that could be used as they are.
    """
    for name in sorted(moving.keys() | given.keys()):
        want = tuple(moving[name].shape) if name in moving else "nothing (it does not move)"
        got = tuple(given[name].shape) if name in given else "nothing"
        if got != want:
            raise ValueError(f"`directions` at {name!r}: expected {want}, got {got}")
        if not torch.isfinite(given[name]).all():
            raise ValueError(f"`directions` at {name!r}: expected finite numbers, got NaN or inf")
    # A direction made of the weights themselves would move along with them.
    own = {t.untyped_storage().data_ptr() for t in moving.values()}
    found = {}
    for name, tensor in moving.items():
        alias = given[name].untyped_storage().data_ptr() in own
        found[name] = given[name].detach().to(tensor.device, tensor.dtype, copy=copy or alias)
    return found


def orthogonalise(axes: Sequence[Params]) -> None:
    """Make the second direction orthogonal to the first, in place (Gram-Schmidt)."""
    first, second = axes
    length = dot(first, first)
    for _ in range(2):  # twice: once leaves the round-off of nearly parallel directions
        share = dot(first, second) / length if length else 0.0
        for name, tensor in second.items():
            tensor.sub_(first[name], alpha=share)


def scales_of(
    direction: Direction, moving: Params, owners: Mapping[str, nn.Module], how: str
) -> Params:
    """What to multiply a direction by: `filter` and `layer` like the weights, `unit` as one vector.

    A filter (or layer) whose weights or whose direction are zero gets the zero direction.
    """
    if how in ("unit", "none"):
        factor = 1 / (norm(direction) or 1.0) if how == "unit" else 1.0
        return {
            n: torch.full((), factor, dtype=t.dtype, device=t.device) for n, t in moving.items()
        }
    scales = {}
    for name, weights in moving.items():
        owner = owners.get(name) if how == "filter" else None
        # Without owner and name the tensor is one filter: the layer itself.
        key = name if how == "filter" else ""
        wanted = filter_norm(weights.detach(), owner, key)
        have = filter_norm(direction[name], owner, key)
        scales[name] = torch.where(have > 0, wanted / have, 0.0)
    return scales


def normalise(direction: Params, moving: Params, owners: Mapping[str, nn.Module], how: str) -> None:
    """Scale a direction in place; see `scales_of`."""
    if how != "none":
        for name, scale in scales_of(direction, moving, owners, how).items():
            direction[name].mul_(scale)


def dot(a: Direction, b: Direction) -> float:
    """Inner product, summed in float64."""
    total = []
    for name, shaped in (a.numbers if isinstance(a, Drawn) else a).items():
        for rows in row_slices(shaped):
            first, second = (rows_of(d, name, rows).flatten().double() for d in (a, b))
            total.append(torch.dot(first, second).item())
    return math.fsum(total)


def norm(a: Direction) -> float:
    """Euclidean length, summed in float64."""
    return math.sqrt(dot(a, a))


def cosine(a: Direction, b: Direction) -> float:
    """Cosine between two directions; NaN if one is zero."""
    length = norm(a) * norm(b)
    return dot(a, b) / length if length else math.nan
