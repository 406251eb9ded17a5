"""Inner products of gradients, of which some may be missing."""

from collections.abc import Sequence
from functools import reduce
from itertools import combinations_with_replacement
from operator import add
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resonance_toolkit import widest_float

# A difference of gradients in half precision has lost the digits that matter.
HALF_PRECISION = (torch.float16, torch.bfloat16)

# Elements multiplied at a time: on the CPU, pieces that stay in its cache (2**16 float64 numbers
# are half a megabyte); on an accelerator, pieces that bound the float64 copies (128 megabytes).
_CPU_CHUNK = 2**16
_ACCELERATOR_CHUNK = 2**24


def inner_products(vectors: list[Tensor | None], *, first_is_sum: bool = False) -> Tensor:
    """Multiply vectors of one shape with each other, adding up in float64 where the device has it.

    Args:
        vectors: Of any float dtype, at least one of them given; None stands for zero.
        first_is_sum: The first vector holds the sum of all, and the others are taken away from it.

    Returns:
        The upper triangle of the matrix of inner products, row by row, in one dimension.
    """
    flat_vectors = [None if vector is None else _flatten(vector) for vector in vectors]
    size, device = next((v.numel(), v.device) for v in flat_vectors if v is not None)

    chunk = _CPU_CHUNK if device.type == "cpu" else _ACCELERATOR_CHUNK
    if size <= chunk:
        return _upper_triangle(flat_vectors, first_is_sum)

    pieces = (
        [None if v is None else v[start : start + chunk] for v in flat_vectors]
        for start in range(0, size, chunk)
    )
    return reduce(add, (_upper_triangle(piece, first_is_sum) for piece in pieces))


def add_optional(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Add two vectors of which either may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def full_matrices(triangles: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Turn upper triangles, shape `(..., n * (n + 1) / 2)`, into symmetric matrices."""
    matrices = np.empty((*triangles.shape[:-1], n, n))
    rows, columns = np.triu_indices(n)

    matrices[..., rows, columns] = triangles
    matrices[..., columns, rows] = triangles
    return matrices


def zero_triangle(n: int, device: torch.device) -> Tensor:
    """Return the upper triangle of `n` vectors that are all zero."""
    return torch.zeros(n * (n + 1) // 2, dtype=widest_float(device), device=device)


def stack_losses(losses: Sequence[Tensor]) -> Tensor:
    """Return the values of scalars `(loss,)`, where the first one is, as wide as they go there."""
    device = losses[0].device
    wide: dict[str, Any] = {"device": device, "dtype": widest_float(device)}
    return torch.stack([loss.detach().to(**wide).reshape(()) for loss in losses])


def _upper_triangle(vectors: list[Tensor | None], first_is_sum: bool) -> Tensor:
    # No operation more than it takes: in a backward pass, most of the time of each is its start.
    wide_vectors = [
        None if vector is None else vector.to(widest_float(vector.device)) for vector in vectors
    ]
    if first_is_sum and wide_vectors[0] is not None:
        for auxiliary in wide_vectors[1:]:
            wide_vectors[0] = wide_vectors[0] if auxiliary is None else wide_vectors[0] - auxiliary

    template = next(vector for vector in wide_vectors if vector is not None)
    pairs = combinations_with_replacement(wide_vectors, 2)
    return torch.stack(
        [template.new_zeros(()) if a is None or b is None else torch.dot(a, b) for a, b in pairs]
    )


def _flatten(vector: Tensor) -> Tensor:
    dense = vector.detach().to_dense() if vector.is_sparse else vector.detach()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1)
