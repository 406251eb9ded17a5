"""Estimates from matrix products: extreme eigenpairs, trace, spectral density."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.lanczos import Ritz, lanczos
from landscape._curvature.matrix import CurvatureMatrix, Product, matrix_vector_product
from landscape._curvature.setup import split_vector, start_vector
from landscape._directions.parameters import Params
from resonance_toolkit import widest_float

Array = NDArray[np.float64]

# Points at which a density is given.
_DENSITY_POINTS = 1001

# Probes before the standard error of a trace is believed.
_FEWEST_PROBES = 5


@dataclass(frozen=True)
class Effort:
    """How well eigenvalues are to be known, and what that may cost.

    Attributes:
        tolerance: Error allowed, relative to each of the largest eigenvalues, and to the norm of
            the matrix for the smallest.
        max_products: Products allowed.
        seed: Decides the start vector.
    """

    tolerance: float
    max_products: int
    seed: int


def extreme_eigenvalues(
    product: Product, template: Tensor, k: int, effort: Effort, *, both_ends: bool = True
) -> Ritz:
    """Run Lanczos until the `k` largest (and `k` smallest) eigenvalues are known well enough.

    Args:
        product: Multiplies a vector by the matrix.
        template: A vector of the right length, type and device.
        k: Eigenvalues at each end.
        effort: When to stop.
        both_ends: Whether the smallest matter.
    """

    def is_enough(ritz: Ritz) -> bool:
        if len(ritz.values) < 2 * k:
            return False

        matrix_norm = np.abs(ritz.values[[0, -1]]).max()
        top = ritz.bounds[-k:] <= effort.tolerance * np.abs(ritz.values[-k:])
        bottom = ritz.bounds[:k] <= effort.tolerance * matrix_norm
        return bool(top.all() and (bottom.all() or not both_ends))

    start = _gaussian(template, effort.seed)
    return lanczos(product, start, effort.max_products, is_enough=is_enough, seed=effort.seed)


def top_vectors(matrix: CurvatureMatrix, k: int, effort: Effort) -> list[Params]:
    """Unit eigenvectors of the `k` largest eigenvalues, of a fixed sign."""
    template = start_vector(matrix)
    with matrix_vector_product(matrix) as product:
        ritz = extreme_eigenvalues(product, template, k, effort, both_ends=False)

    if len(ritz.values) < k:
        raise ValueError(
            f"`max_products`: {len(ritz.values)} products of {len(template)} numbers "
            f"give no {k} eigenvectors"
        )

    # An eigenvector comes with either sign: the sum of its numbers is made positive.
    vectors = [ritz.vector(-1 - i) for i in range(k)]
    vectors = [v / v.norm() * (-1.0 if _widen(v).sum() < 0 else 1.0) for v in vectors]
    return [split_vector(vector, matrix.params) for vector in vectors]


def estimate_trace(
    product: Product, ritz: Ritz, tolerance: float, max_probes: int, seed: int
) -> tuple[float, float, int]:
    """Estimate the trace: exact on the Lanczos basis, Hutchinson's estimator beside it.

    With `Q` the basis and `z` random signs, `tr A = tr(Q A Q') + E[z' P A P z]`, `P = 1 - Q' Q`:
    the first part is known, and its eigenvalues no longer make the second one noisy. Stops when the
    standard error is below `tolerance` times the trace, never on two similar means.

    Returns:
        The estimate, its standard error (0 if the basis is complete), and the products spent.
    """
    known_part = float(ritz.values.sum())
    basis = ritz.basis
    if len(basis) == basis.shape[1]:
        return known_part, 0.0, 0

    generator = _generator(seed + 1)
    estimates: list[float] = []
    for _ in range(max_probes):
        signs = _draw_signs(basis.shape[1], generator)
        probe = signs.to(basis)
        probe -= basis.T @ (basis @ probe)
        estimates.append(torch.dot(_widen(probe), _widen(product(probe))).item())

        if len(estimates) >= min(_FEWEST_PROBES, max_probes):
            error = _standard_error(estimates)
            if error <= tolerance * abs(known_part + float(np.mean(estimates))):
                break

    if not estimates:
        return math.nan, math.nan, 0
    return known_part + float(np.mean(estimates)), _standard_error(estimates), len(estimates)


def estimate_density(
    product: Product, template: Tensor, runs: int, steps: int, seed: int
) -> tuple[Array, Array]:
    """Eigenvalues and their density, by stochastic Lanczos quadrature with Gaussian bumps."""
    # Seeds other than those of eigenvalues and trace.
    starts = (_random_signs(template, seed + 2 + i) for i in range(runs))
    quadratures = [lanczos(product, start, steps, seed=seed) for start in starts]
    if not quadratures:
        return np.full(_DENSITY_POINTS, np.nan), np.full(_DENSITY_POINTS, np.nan)

    nodes = np.concatenate([ritz.values for ritz in quadratures])
    weights = np.concatenate([ritz.weights for ritz in quadratures]) / runs

    # Bumps are a hundredth of the spectrum wide; one with a single value has no width of its own.
    spread = np.ptp(nodes) or max(abs(nodes[0]), 1.0) * 1e-3
    width = spread / 100
    values = np.linspace(nodes.min() - 6 * width, nodes.max() + 6 * width, _DENSITY_POINTS)
    bumps = np.exp(-0.5 * ((values[:, None] - nodes) / width) ** 2)
    return values, bumps @ weights / (width * math.sqrt(2 * math.pi))


def _standard_error(estimates: list[float]) -> float:
    if len(estimates) < 2:
        return math.nan
    return float(np.std(estimates, ddof=1) / math.sqrt(len(estimates)))


def _gaussian(template: Tensor, seed: int) -> Tensor:
    """A random start vector, the same on every device."""
    numbers = torch.randn(
        len(template), generator=_generator(seed), dtype=torch.float64, device="cpu"
    )
    return numbers.to(template)


def _widen(vector: Tensor) -> Tensor:
    return vector.to(widest_float(vector.device))


def _random_signs(template: Tensor, seed: int) -> Tensor:
    return _draw_signs(len(template), _generator(seed)).to(template)


def _draw_signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator, device="cpu") * 2 - 1


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
