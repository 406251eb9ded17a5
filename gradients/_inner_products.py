from itertools import combinations_with_replacement

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
    zero = torch.zeros((), dtype=torch.float64, device=device)
    sums = [zero] * (len(flat) * (len(flat) + 1) // 2)
    for start in range(0, size, chunk):
        pieces = [None if v is None else v[start : start + chunk].double() for v in flat]
        if first_is_sum and pieces[0] is not None:
            for other in pieces[1:]:
                pieces[0] = pieces[0] if other is None else pieces[0] - other
        pairs = combinations_with_replacement(pieces, 2)
        for index, (a, b) in enumerate(pairs):
            if a is not None and b is not None:
                sums[index] = sums[index] + torch.dot(a, b)
    return torch.stack(sums)


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


def _flat(vector: Tensor) -> Tensor:
    dense = vector.detach().to_dense() if vector.is_sparse else vector.detach()
    return (torch.view_as_real(dense) if dense.is_complex() else dense).reshape(-1)
