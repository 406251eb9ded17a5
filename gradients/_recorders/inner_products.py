from functools import reduce
from itertools import combinations_with_replacement
from operator import add

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A difference of gradients in half precision has lost the digits that matter.
HALF = (torch.float16, torch.bfloat16)


def inner_products(vectors: list[Tensor | None], *, first_is_sum: bool = False) -> Tensor:
    """Multiply vectors of one shape with each other, adding up in float64.

    Args:
        vectors: Of any float dtype, at least one of them given; None stands for zero.
        first_is_sum: The first vector holds the sum of all, and the others are taken away from it.

    Returns:
        The upper triangle of the matrix of inner products, row by row, in one dimension.
    """
    flat = [None if vector is None else _flat(vector) for vector in vectors]
    size, device = next((v.numel(), v.device) for v in flat if v is not None)
    # Pieces that stay in the CPU's cache, or that bound the float64 copies on an accelerator.
    chunk = 2**16 if device.type == "cpu" else 2**24
    if size <= chunk:
        return _triangle(flat, first_is_sum)
    starts = range(0, size, chunk)
    pieces = ([None if v is None else v[i : i + chunk] for v in flat] for i in starts)
    return reduce(add, (_triangle(piece, first_is_sum) for piece in pieces))


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Add two vectors of which either may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def full_matrices(triangles: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Turn upper triangles, shape `(..., count * (count + 1) / 2)`, into symmetric matrices."""
    full = np.empty((*triangles.shape[:-1], count, count))
    rows, columns = np.triu_indices(count)
    full[..., rows, columns] = triangles
    full[..., columns, rows] = triangles
    return full


def _triangle(vectors: list[Tensor | None], first_is_sum: bool) -> Tensor:
    # No operation more than it takes: amid a backward pass, most of the time of each is its start.
    double = [None if vector is None else vector.double() for vector in vectors]
    if first_is_sum and double[0] is not None:
        for other in double[1:]:
            double[0] = double[0] if other is None else double[0] - other
    like = next(vector for vector in double if vector is not None)
    pairs = combinations_with_replacement(double, 2)
    return torch.stack(
        [like.new_zeros(()) if a is None or b is None else torch.dot(a, b) for a, b in pairs]
    )


def _flat(vector: Tensor) -> Tensor:
    dense = vector.detach().to_dense() if vector.is_sparse else vector.detach()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1)
