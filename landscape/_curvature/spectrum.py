"""The spectrum of a matrix or of its diagonal blocks: eigenvalues at both ends, trace, density."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.estimates import (
    Effort,
    basis_size_within,
    densities,
    estimate_quadrature,
    estimate_trace,
    residuals_by_control,
    run_together,
    search_extremes,
)
from landscape._curvature.matrix import Block
from landscape._curvature.products import MatrixProduct

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SpectrumEffort:
    """How much to spend on a spectrum; `curvature` says what the settings mean."""

    k: int
    both_ends: bool
    tolerance: float
    max_products: int
    trace_tolerance: float
    trace_probes: int
    density_runs: int
    density_steps: int
    memory: float
    seed: int


@dataclass(frozen=True)
class Spectrum:
    """What is known of each block's spectrum.

    Attributes:
        columns: Arrays `(block, rank)`: the eigenvalues at both ends and their residuals.
        trace, trace_error: Arrays `(block,)`.
        eigenvalues: Where the density is given.
        density: An array `(block, eigenvalue)`.
        n_products: Products spent on each of the three, of the block that took most.
        basis_size: Vectors that were allowed in a basis.
    """

    columns: dict[str, Array]
    trace: Array
    trace_error: Array
    eigenvalues: Array
    density: Array
    n_products: dict[str, int]
    basis_size: int


def measure_spectrum(
    product: MatrixProduct,
    blocks: Sequence[Block],
    templates: Sequence[Tensor],
    effort: SpectrumEffort,
) -> Spectrum:
    """Measure the spectra of all blocks on the same passes over the data.

    Args:
        product: Multiplies by the matrix.
        blocks: Positions of the parameters of each block.
        templates: For each block a vector of its length, of the type and device to work with.
        effort: What may be spent.
    """
    k = effort.k
    seed = effort.seed
    basis_size = basis_size_within(effort.memory, product.graph_bytes, templates, k)
    search = Effort(effort.tolerance, effort.max_products, basis_size, seed)
    searches = [
        search_extremes(template, k, search, both_ends=effort.both_ends) for template in templates
    ]
    ritz = run_together(product, blocks, searches)

    # The trace takes over the Lanczos basis of the eigenvalues: their products serve twice.
    probing = effort.trace_tolerance, effort.trace_probes, seed
    traces = run_together(product, blocks, [estimate_trace(r, *probing) for r in ritz])

    # What products only approximate, an eigenpair shows against products with other errors.
    residuals = [r.residuals for r in ritz]
    n_checks = 0
    control = product.control()
    if control is not None:
        checks = [residuals_by_control(r, k, both_ends=effort.both_ends) for r in ritz]
        residuals = run_together(control, blocks, checks)
        n_checks = 2 * k if effort.both_ends else k

    rounding = max(torch.finfo(p.dtype).eps for p in product.params)
    pairs = [(r.values, residual) for r, residual in zip(ritz, residuals, strict=True)]
    columns = _columns(pairs, k, max(rounding, product.error))
    if not effort.both_ends:
        # What Lanczos' method saw of the other end on its way is far from an eigenvalue.
        for name in ("smallest", "smallest_residual"):
            columns[name] = np.full_like(columns[name], math.nan)
    n_products_by_block = [r.n_products for r in ritz]

    # The vectors of the density take the place of those of the eigenvalues.
    del ritz
    runs = effort.density_runs
    steps = effort.density_steps
    quadratures = [
        estimate_quadrature(template, runs, steps, basis_size, seed) for template in templates
    ]
    eigenvalues, density = densities(run_together(product, blocks, quadratures))

    longest = max(len(template) for template in templates)
    return Spectrum(
        columns,
        trace=np.array([trace for trace, _, _ in traces]),
        trace_error=np.array([error for _, error, _ in traces]),
        eigenvalues=eigenvalues,
        density=density,
        n_products={
            "eigenvalues": max(n_products_by_block) + n_checks,
            "trace": max(n_probes for _, _, n_probes in traces),
            "density": runs * min(steps, longest),
        },
        basis_size=min(basis_size, effort.max_products, longest),
    )


def _columns(pairs: Sequence[tuple[Array, Array]], k: int, rounding: float) -> dict[str, Array]:
    """The outermost `k` Ritz values of each block, and their residuals."""
    columns: dict[str, list[Array]] = {
        "largest": [],
        "largest_residual": [],
        "smallest": [],
        "smallest_residual": [],
    }
    for values, residuals in pairs:
        # Lanczos' own estimate goes on to fall where products cannot be told apart any more.
        known_to = np.maximum(residuals, rounding * np.abs(values).max())

        columns["largest"].append(_first_or_nan(values[::-1], k))
        columns["largest_residual"].append(_first_or_nan(known_to[::-1], k))
        columns["smallest"].append(_first_or_nan(values, k))
        columns["smallest_residual"].append(_first_or_nan(known_to, k))
    return {name: np.stack(rows) for name, rows in columns.items()}


def _first_or_nan(column: Array, k: int) -> Array:
    """The first `k` numbers; of a matrix with fewer eigenvalues, the rest is undefined."""
    return np.append(column[:k], np.full(max(k - len(column), 0), math.nan))
