"""Estimates from matrix products: extreme eigenvalues, trace, spectral density."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.lanczos import Ritz, lanczos
from landscape._curvature.matrix import Product

Array = NDArray[np.float64]
_DENSITY_POINTS = 1001


def gaussian(like: Tensor, seed: int) -> Tensor:
    """A random start vector, the same on every device."""
    numbers = torch.randn(len(like), generator=_generator(seed), dtype=torch.float64)
    return numbers.to(like)


def extreme_eigenvalues(
    product: Product,
    like: Tensor,
    k: int,
    tolerance: float,
    max_products: int,
    seed: int,
    *,
    both_ends: bool = True,
) -> Ritz:
    """Lanczos until the `k` largest (and `k` smallest) eigenvalues are known well enough.

    Well enough: the largest to `tolerance` relative to each, the smallest relative to the norm.
    """

    def enough(found: Ritz) -> bool:
        if len(found.values) < 2 * k:
            return False
        norm = np.abs(found.values[[0, -1]]).max()
        top = found.bounds[-k:] <= tolerance * np.abs(found.values[-k:])
        bottom = found.bounds[:k] <= tolerance * norm
        return bool(top.all() and (bottom.all() or not both_ends))

    return lanczos(product, gaussian(like, seed), max_products, enough=enough, seed=seed)


def estimate_trace(
    product: Product, known: Ritz, tolerance: float, max_probes: int, seed: int
) -> tuple[float, float, int]:
    """Trace and its standard error: exact on the Lanczos basis, Hutchinson's beside it.

    Stops when the standard error is below `tolerance` times the trace, never on two similar means.

    Returns:
        The estimate, its standard error (0 if the basis is complete), and the products spent.
    """
    exact = float(known.values.sum())
    basis = known.basis
    if len(basis) == basis.shape[1]:
        return exact, 0.0, 0
    generator = _generator(seed + 1)
    found: list[float] = []
    for _ in range(max_probes):
        signs = torch.randint(0, 2, (basis.shape[1],), generator=generator) * 2 - 1
        probe = signs.to(basis)
        probe -= basis.T @ (basis @ probe)
        found.append(torch.dot(probe.double(), product(probe).double()).item())
        if len(found) >= min(5, max_probes):
            error = _standard_error(found)
            if error <= tolerance * abs(exact + float(np.mean(found))):
                break
    if not found:
        return math.nan, math.nan, 0
    return exact + float(np.mean(found)), _standard_error(found), len(found)


def estimate_density(
    product: Product, like: Tensor, runs: int, steps: int, seed: int
) -> tuple[Array, Array]:
    """Eigenvalues and their density, by stochastic Lanczos quadrature with Gaussian bumps."""
    found = [lanczos(product, _signs(like, seed + 2 + i), steps, seed=seed) for i in range(runs)]
    if not found:
        return np.full(_DENSITY_POINTS, np.nan), np.full(_DENSITY_POINTS, np.nan)
    nodes = np.concatenate([run.values for run in found])
    weights = np.concatenate([run.weights for run in found]) / runs
    spread = np.ptp(nodes) or max(abs(nodes[0]), 1.0) * 1e-3
    width = spread / 100
    values = np.linspace(nodes.min() - 6 * width, nodes.max() + 6 * width, _DENSITY_POINTS)
    bumps = np.exp(-0.5 * ((values[:, None] - nodes) / width) ** 2)
    return values, bumps @ weights / (width * math.sqrt(2 * math.pi))


def _standard_error(found: list[float]) -> float:
    return float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else math.nan


def _signs(like: Tensor, seed: int) -> Tensor:
    signs = torch.randint(0, 2, (len(like),), generator=_generator(seed)) * 2 - 1
    return signs.to(like)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
