"""Lanczos' method with full reorthogonalisation.

After `k` products with a symmetric matrix `A` there is an orthonormal basis `Q` of the Krylov space
and a tridiagonal `T = Q A Q'`. The eigenvalues of `T`, the Ritz values, approximate those of `A`,
the outermost first.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.matrix import Product

Array = NDArray[np.float64]

# Any number will do, as long as `seed ^ it` is not a seed that a caller has used.
_RESTART_SEED = 0x5DEECE66D


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
        coordinates = torch.from_numpy(self.vectors[:, index]).to(self.basis)
        return coordinates @ self.basis


def _never(_ritz: Ritz) -> bool:
    return False


def lanczos(
    product: Product,
    start: Tensor,
    steps: int,
    *,
    is_enough: Callable[[Ritz], bool] = _never,
    seed: int = 0,
) -> Ritz:
    """Approximate eigenpairs from at most `steps` products, fewer once `is_enough` says so.

    Restarts with a random vector when the Krylov space is invariant. An eigenvalue of high
    multiplicity may be found fewer times than it occurs.
    """
    steps = min(steps, len(start))
    basis = torch.zeros(steps, len(start), dtype=start.dtype, device=start.device)
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    off_diagonal: list[float] = []

    # Not `seed` itself: that may have drawn the start vector, which is of no use a second time.
    generator = torch.Generator().manual_seed(seed ^ _RESTART_SEED)

    for step in range(steps):
        image = product(basis[step])
        numbers = torch.stack([torch.dot(image, basis[step]), image.norm()])
        diagonal_entry, image_norm = numbers.tolist()
        diagonal.append(diagonal_entry)
        if not math.isfinite(image_norm):
            return _undefined_ritz(basis[: step + 1])

        _orthogonalise(image, basis[: step + 1])
        residual_norm = image.norm().item()

        # Invariant to working precision: what is left of the image is round-off.
        round_off = 100 * torch.finfo(start.dtype).eps * max(image_norm, 1e-30)
        is_invariant = residual_norm <= round_off
        coupling = 0.0 if is_invariant else residual_norm

        ritz = _ritz_pairs(diagonal, off_diagonal, coupling, basis[: step + 1])
        if step + 1 == steps or is_enough(ritz):
            break

        if is_invariant:
            random_vector = torch.randn(
                len(start), generator=generator, dtype=torch.float64, device="cpu"
            )
            image = random_vector.to(start)
            _orthogonalise(image, basis[: step + 1])
        off_diagonal.append(coupling)
        basis[step + 1] = image / image.norm()

    return ritz


def _undefined_ritz(basis: Tensor) -> Ritz:
    """What is known where the loss is not finite: nothing."""
    steps = len(basis)
    undefined = np.full(steps, np.nan)
    return Ritz(undefined, undefined, undefined, undefined, np.full((steps, steps), np.nan), basis)


def _orthogonalise(vector: Tensor, basis: Tensor) -> None:
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        vector -= basis.T @ (basis @ vector)


def _ritz_pairs(
    diagonal: list[float], off_diagonal: list[float], coupling: float, basis: Tensor
) -> Ritz:
    tridiagonal = np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1)
    values, vectors = np.linalg.eigh(tridiagonal)

    # The residual of a Ritz pair is its last component times the coupling to the next vector.
    residuals = coupling * np.abs(vectors[-1])

    padded = np.concatenate([[-np.inf], values, [np.inf]])
    gaps = np.minimum(values - padded[:-2], padded[2:] - values)
    with np.errstate(divide="ignore", invalid="ignore"):
        sharper = np.where(gaps > residuals, residuals**2 / (gaps - residuals), np.inf)
    bounds = np.minimum(residuals, sharper) if len(values) > 1 else residuals

    return Ritz(values, residuals, bounds, vectors[0] ** 2, vectors, basis)
