"""Directions in parameter space: drawn or given, orthogonalised, normalised."""

import hashlib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from landscape._moving import Params, filter_norm

NORMALISATIONS = ("filter", "layer", "unit", "none")


def random_direction(moving: Params, seed: int, axis: int) -> Params:
    """Gaussian numbers that depend on seed, axis and parameter name alone.

    Drawn in float64 on the CPU: every device and precision gets the same ones, and leaving one
    parameter out changes no other.
    """
    drawn = {}
    for name, tensor in moving.items():
        key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
        numbers = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        drawn[name] = numbers.to(tensor.device, tensor.dtype)
    return drawn


def given_direction(given: Mapping[str, Tensor], moving: Params) -> Params:
    """Check that a direction fits the tensors that move, and bring it to their device and dtype."""
    for name in sorted(moving.keys() | given.keys()):
        want = tuple(moving[name].shape) if name in moving else "nothing (it does not move)"
        got = tuple(given[name].shape) if name in given else "nothing"
        if got != want:
            raise ValueError(f"`directions` at {name!r}: expected {want}, got {got}")
        if not torch.isfinite(given[name]).all():
            raise ValueError(f"`directions` at {name!r}: expected finite numbers, got NaN or inf")
    return {n: given[n].detach().to(t.device, t.dtype, copy=True) for n, t in moving.items()}


def orthogonalise(axes: Sequence[Params]) -> None:
    """Make the second direction orthogonal to the first, in place (Gram-Schmidt)."""
    first, second = axes
    length = dot(first, first)
    for _ in range(2):  # twice: once leaves the round-off of nearly parallel directions
        share = dot(first, second) / length if length else 0.0
        for name, tensor in second.items():
            tensor.sub_(first[name], alpha=share)


def normalise(direction: Params, moving: Params, owners: Mapping[str, nn.Module], how: str) -> None:
    """Scale a direction in place: `filter` and `layer` like the weights, `unit` as one vector.

    A filter (or layer) whose weights or whose direction are zero gets the zero direction.
    """
    if how == "unit":
        length = norm(direction)
        for tensor in direction.values():
            tensor.div_(length if length else 1.0)
    elif how in ("filter", "layer"):
        for name, tensor in direction.items():
            owner = owners.get(name) if how == "filter" else None
            # Without owner and name the tensor is one filter: the layer itself.
            key = name if how == "filter" else ""
            wanted = filter_norm(moving[name].detach(), owner, key)
            have = filter_norm(tensor, owner, key)
            tensor.mul_(torch.where(have > 0, wanted / have, 0.0))


def dot(a: Params, b: Params) -> float:
    """Inner product, summed in float64."""
    return math.fsum(
        torch.dot(a[name].flatten().double(), b[name].flatten().double()).item() for name in a
    )


def norm(a: Params) -> float:
    """Euclidean length, summed in float64."""
    return math.sqrt(dot(a, a))


def cosine(a: Params, b: Params) -> float:
    """Cosine between two directions; NaN if one is zero."""
    length = norm(a) * norm(b)
    return dot(a, b) / length if length else math.nan
