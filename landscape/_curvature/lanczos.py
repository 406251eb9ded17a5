"""Lanczos' method with full reorthogonalisation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.matrix import Product

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ritz:
    """Approximate eigenpairs of a symmetric matrix, in ascending order.

    Attributes:
        values: Ritz values, shape `(step,)`.
        residuals: `||A v - value v||` of each, an upper bound on its distance to an eigenvalue.
        bounds: A sharper bound on that distance, `residual^2 / gap`, where it is one.
        weights: Squared first components, the quadrature weights of the start vector.
        vectors: Coordinates of the Ritz vectors in the basis, shape `(step, value)`.
        basis: Orthonormal rows, shape `(step, parameter)`.
    """

    values: Array
    residuals: Array
    bounds: Array
    weights: Array
    vectors: Array
    basis: Tensor

    def vector(self, index: int) -> Tensor:
        """A Ritz vector."""
        weights = torch.from_numpy(self.vectors[:, index]).to(self.basis)
        return weights @ self.basis


def lanczos(
    product: Product,
    start: Tensor,
    steps: int,
    *,
    enough: Callable[[Ritz], bool] = lambda found: False,
    seed: int = 0,
) -> Ritz:
    """Approximate eigenpairs from at most `steps` products, fewer once `enough` says so.

    Where the vectors made so far are closed under the matrix, a random vector goes on beside them.
    An eigenvalue of high multiplicity may be found fewer times than it occurs.
    """
    steps = min(steps, len(start))
    basis = torch.zeros(steps, len(start), dtype=start.dtype, device=start.device)
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    # Not `seed` itself: that may have drawn the start vector, which is of no use a second time.
    generator = torch.Generator().manual_seed(seed ^ 0x5DEECE66D)
    for step in range(steps):
        image = product(basis[step])
        diagonal.append(torch.dot(image, basis[step]).item())
        size = image.norm().item()
        if not math.isfinite(size):
            return _unknown(basis[: step + 1])
        _orthogonalise(image, basis[: step + 1])
        length = image.norm().item()
        closed = length <= 100 * torch.finfo(start.dtype).eps * max(size, 1e-30)
        found = _ritz(diagonal, beside, 0.0 if closed else length, basis[: step + 1])
        if step + 1 == steps or enough(found):
            break
        if closed:
            image = torch.randn(len(start), generator=generator, dtype=torch.float64).to(start)
            _orthogonalise(image, basis[: step + 1])
            beside.append(0.0)
        else:
            beside.append(length)
        basis[step + 1] = image / image.norm()
    return found


def _unknown(basis: Tensor) -> Ritz:
    """What is known where the loss is not finite: nothing."""
    steps = len(basis)
    none = np.full(steps, np.nan)
    return Ritz(none, none, none, none, np.full((steps, steps), np.nan), basis)


def _orthogonalise(vector: Tensor, basis: Tensor) -> None:
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        vector -= basis.T @ (basis @ vector)


def _ritz(diagonal: list[float], beside: list[float], last: float, basis: Tensor) -> Ritz:
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    values, vectors = np.linalg.eigh(matrix)
    residuals = last * np.abs(vectors[-1])
    padded = np.concatenate([[-np.inf], values, [np.inf]])
    gaps = np.minimum(values - padded[:-2], padded[2:] - values)
    with np.errstate(divide="ignore", invalid="ignore"):
        sharper = np.where(gaps > residuals, residuals**2 / (gaps - residuals), np.inf)
    bounds = np.minimum(residuals, sharper) if len(values) > 1 else residuals
    return Ritz(values, residuals, bounds, vectors[0] ** 2, vectors, basis)
