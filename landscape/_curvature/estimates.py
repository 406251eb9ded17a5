"""Estimates from matrix products: extreme eigenpairs, trace, spectral density.

Each estimate is a generator: it yields a vector and is sent its product. `run_together` serves
several, of the whole matrix or of its diagonal blocks, from the same passes over the data.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.lanczos import Ends, Ritz, Search, quadrature, search_ends, smallest_basis
from landscape._curvature.matrix import Block, CurvatureMatrix
from landscape._curvature.products import MatrixProduct, matrix_vector_product
from landscape._curvature.setup import split_vector, start_vector
from landscape._directions.parameters import Params
from resonance_toolkit import devices_of, preserving_rng, widest_float

Array = NDArray[np.float64]
Result = TypeVar("Result")

# Bytes of a basis that is not worth a restart, whatever else there is: a large activation's.
_SMALL_BASIS = 2**24

# Points at which a density is given.
_DENSITY_POINTS = 1001

# Numbers of two vectors that are multiplied at a time in double precision: 16 MB.
_NUMBERS_AT_A_TIME = 2**20

# Probes before the standard error of a trace is believed.
_FEWEST_PROBES = 5


@dataclass(frozen=True)
class Effort:
    """How well eigenvalues are to be known, and what that may cost.

    Attributes:
        tolerance: Error allowed, relative to each of the largest eigenvalues, and to the norm of
            the matrix for the smallest.
        max_products: Products allowed.
        basis_size: Vectors allowed in the basis of Lanczos' method.
        seed: Decides the start vector.
    """

    tolerance: float
    max_products: int
    basis_size: int
    seed: int


def run_together(
    product: MatrixProduct,
    blocks: Sequence[Block],
    estimates: Sequence[Generator[Tensor, Tensor, Result]],
) -> list[Result]:
    """Run an estimate for each block, all on the same passes over the data.

    Args:
        product: Multiplies by the matrix.
        blocks: What each estimate is about.
        estimates: One for each block, not yet begun.
    """
    results: dict[int, Result] = {}
    waiting: dict[int, Tensor] = {}

    def advance(index: int, image: Tensor | None) -> None:
        try:
            # None begins a generator.
            waiting[index] = estimates[index].send(image)  # type: ignore[arg-type]
        except StopIteration as finished:
            results[index] = finished.value
            waiting.pop(index, None)

    for index in range(len(estimates)):
        advance(index, None)

    while waiting:
        indices = list(waiting)
        images = product.multiply([(blocks[index], waiting[index]) for index in indices])
        for index, image in zip(indices, images, strict=True):
            advance(index, image)

    return [results[index] for index in range(len(estimates))]


def basis_size_within(memory: float, graph_bytes: int, templates: Sequence[Tensor], k: int) -> int:
    """Vectors that fit beside the graphs, but never fewer than a search can work with."""
    bytes_of_vector = sum(template.numel() * template.element_size() for template in templates)
    allowed_bytes = max(memory - graph_bytes, _SMALL_BASIS)

    # Without limits the basis ends with the parameters.
    n_fitting = min(allowed_bytes / max(bytes_of_vector, 1), max(map(len, templates)))
    return max(smallest_basis(k), int(n_fitting))


def search_extremes(template: Tensor, k: int, effort: Effort, *, both_ends: bool = True) -> Search:
    """Look for the `k` largest (and `k` smallest) eigenvalues until they are known well enough.

    Args:
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

    ends = Ends(
        k,
        both=both_ends,
        is_enough=is_enough,
        max_products=effort.max_products,
        basis_size=effort.basis_size,
        seed=effort.seed,
    )
    return search_ends(_gaussian(template, effort.seed), ends)


def residuals_by_control(
    ritz: Ritz, k: int, *, both_ends: bool
) -> Generator[Tensor, Tensor, Array]:
    """Residuals, those of the outermost `k` values no smaller than other products show."""
    residuals = ritz.residuals.copy()
    if not np.isfinite(ritz.values).all():
        return residuals

    n_values = len(residuals)
    highest = range(max(n_values - k, 0), n_values)
    lowest = range(min(k, n_values) if both_ends else 0)
    for index in sorted({*lowest, *highest}):
        vector = ritz.vector(index)
        vector /= vector.norm()
        image = yield vector
        residual = (image - float(ritz.values[index]) * vector).norm().item()
        residuals[index] = max(residuals[index], residual)
    return residuals


def extreme_pair(matrix: CurvatureMatrix, tolerance: float, max_products: int, seed: int) -> Ritz:
    """The largest and the smallest eigenvalue of a matrix."""
    return _search_whole(matrix, 1, tolerance, max_products, seed, both_ends=True)


def top_vectors(
    matrix: CurvatureMatrix, k: int, tolerance: float, max_products: int, seed: int
) -> list[Params]:
    """Unit eigenvectors of the `k` largest eigenvalues, of a fixed sign."""
    with preserving_rng(devices_of(matrix.model)):
        ritz = _search_whole(matrix, k, tolerance, max_products, seed, both_ends=False)

    if len(ritz.values) < k:
        raise ValueError(
            f"`max_products`: expected enough products for {k} eigenvectors, got "
            f"{len(ritz.values)} with {ritz.basis.dimension} numbers"
        )

    # An eigenvector comes with either sign: the sum of its numbers is made positive.
    vectors = [ritz.vector(-1 - i) for i in range(k)]
    vectors = [v / v.norm() * (-1.0 if v.cpu().double().sum() < 0 else 1.0) for v in vectors]
    return [split_vector(vector, matrix.params) for vector in vectors]


def _search_whole(
    matrix: CurvatureMatrix,
    k: int,
    tolerance: float,
    max_products: int,
    seed: int,
    *,
    both_ends: bool,
) -> Ritz:
    template = start_vector(matrix.params)
    with matrix_vector_product(matrix) as product:
        basis_size = basis_size_within(matrix.memory, product.graph_bytes, [template], k)
        effort = Effort(tolerance, max_products, basis_size, seed)
        search = search_extremes(template, k, effort, both_ends=both_ends)
        (ritz,) = run_together(product, [range(len(matrix.params))], [search])
    return ritz


def estimate_trace(
    ritz: Ritz, tolerance: float, max_probes: int, seed: int
) -> Generator[Tensor, Tensor, tuple[float, float, int]]:
    """Estimate the trace: exact on the Lanczos basis, Hutchinson's estimator beside it.

    With `Q` the basis and `z` random signs, `tr A = tr(Q A Q') + E[z' P A P z]`, `P = 1 - Q' Q`:
    the first part is known, and its eigenvalues no longer make the second one noisy. Stops when the
    standard error is below `tolerance` times the trace, never on two similar means.

    Returns:
        The estimate, its standard error (0 if the basis is complete), and the products spent.
    """
    known_part = float(ritz.values.sum())
    basis = ritz.basis
    if len(basis) == basis.dimension:
        return known_part, 0.0, 0

    generator = _generator(seed + 1)
    estimates: list[float] = []
    for _ in range(max_probes):
        probe = _draw_signs(basis.row(0), generator)
        basis.project_out(probe)
        image = yield probe
        estimates.append(_wide_dot(probe, image))

        if len(estimates) >= min(_FEWEST_PROBES, max_probes):
            error = _standard_error(estimates)
            if error <= tolerance * abs(known_part + float(np.mean(estimates))):
                break

    if not estimates:
        return math.nan, math.nan, 0
    return known_part + float(np.mean(estimates)), _standard_error(estimates), len(estimates)


def estimate_quadrature(
    template: Tensor, runs: int, steps: int, window: int, seed: int
) -> Generator[Tensor, Tensor, tuple[Array, Array]]:
    """Nodes and weights of the spectral density, by stochastic Lanczos quadrature.

    Args:
        template: A vector of the right length, type and device.
        runs: Start vectors.
        steps: Lanczos steps from each.
        window: Vectors to keep at a time.
        seed: Decides the start vectors.
    """
    nodes = [np.empty(0)]
    weights = [np.empty(0)]
    for run in range(runs):
        # Seeds other than those of eigenvalues and trace.
        start = _random_signs(template, seed + 2 + run)
        run_nodes, run_weights = yield from quadrature(start, steps, window=window, seed=seed)
        nodes.append(run_nodes)
        weights.append(run_weights / runs)
    return np.concatenate(nodes), np.concatenate(weights)


def densities(quadratures: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Eigenvalues, and the density of each block at them, with Gaussian bumps for nodes."""
    all_nodes = np.concatenate([nodes for nodes, _ in quadratures])
    if not len(all_nodes):
        undefined = np.full(_DENSITY_POINTS, np.nan)
        return undefined, np.tile(undefined, (len(quadratures), 1))

    # Bumps are a hundredth of the spectrum wide; one with a single value has no width of its own.
    spread = np.ptp(all_nodes) or max(abs(all_nodes[0]), 1.0) * 1e-3
    width = spread / 100
    values = np.linspace(all_nodes.min() - 6 * width, all_nodes.max() + 6 * width, _DENSITY_POINTS)

    by_block = []
    for nodes, weights in quadratures:
        bumps = np.exp(-0.5 * ((values[:, None] - nodes) / width) ** 2)
        by_block.append(bumps @ weights / (width * math.sqrt(2 * math.pi)))
    return values, np.stack(by_block)


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


def _wide_dot(first: Tensor, second: Tensor) -> float:
    """An inner product in the widest precision, a piece at a time: no wide copy is made."""
    wide = widest_float(first.device)
    pairs = zip(first.split(_NUMBERS_AT_A_TIME), second.split(_NUMBERS_AT_A_TIME), strict=True)
    return torch.stack([torch.dot(a.to(wide), b.to(wide)) for a, b in pairs]).sum().item()


def _random_signs(template: Tensor, seed: int) -> Tensor:
    return _draw_signs(template, _generator(seed))


def _draw_signs(template: Tensor, generator: torch.Generator) -> Tensor:
    # In one byte each, until they are what the template is.
    bits = torch.randint(
        0, 2, (len(template),), generator=generator, dtype=torch.int8, device="cpu"
    )
    return bits.mul_(2).sub_(1).to(template)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
