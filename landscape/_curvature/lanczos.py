"""Lanczos' method with full reorthogonalisation, thick restarts, and a short form for densities.

After `k` products with a symmetric matrix `A` there is an orthonormal basis `Q` of the Krylov space
and a small matrix `T = Q A Q'`. The eigenvalues of `T`, the Ritz values, approximate those of `A`,
the outermost first.

    search_ends     the outermost eigenvalues, in a basis of bounded size
    quadrature      nodes and weights of a start vector, for the density

A basis that is full is restarted (Wu and Simon 2000): the Ritz vectors at the ends that are asked
for replace it, together with the latest residual, which all of their residuals are multiples of.
Nothing that matters is lost, so that few products are added to those of an unbounded basis.

Both are generators: they yield a vector and are sent its product. So a caller decides where
products come from, and can run several searches on the same passes over the data.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape._curvature.krylov_basis import KrylovBasis

Array = NDArray[np.float64]

# Any number will do, as long as `seed ^ it` is not a seed that a caller has used.
_RESTART_SEED = 0x5DEECE66D


@dataclass(frozen=True)
class Ritz:
    """Approximate eigenpairs of a symmetric matrix, in ascending order.

    Attributes:
        values: Ritz values, shape `(row,)`, a row being a vector of the basis.
        residuals: `||A v - value v||` of each, an upper bound on its distance to an eigenvalue.
        bounds: A sharper bound on that distance, `residual^2 / gap`, where it is one.
        vectors: Coordinates of the Ritz vectors in the basis, shape `(row, value)`.
        basis: Orthonormal rows.
        n_products: Products that were needed.
    """

    values: Array
    residuals: Array
    bounds: Array
    vectors: Array
    basis: KrylovBasis
    n_products: int

    def vector(self, index: int) -> Tensor:
        """A Ritz vector."""
        return self.basis.combine(torch.from_numpy(np.ascontiguousarray(self.vectors[:, index])))


Search = Generator[Tensor, Tensor, Ritz]


@dataclass(frozen=True)
class Ends:
    """Which eigenvalues a search is for, and what it may spend.

    Attributes:
        k: Eigenvalues at each end.
        both: Whether the smallest matter.
        is_enough: Tells from the Ritz pairs whether they are known well enough.
        max_products: Products allowed.
        basis_size: Vectors allowed in the basis.
        seed: Decides vectors that replace an exhausted Krylov space.
    """

    k: int
    both: bool
    is_enough: Callable[[Ritz], bool]
    max_products: int
    basis_size: int
    seed: int

    def indices_to_keep(self, n_values: int) -> list[int]:
        """Which of the Ritz values survive a restart: those asked for, and their neighbours.

        Neighbours speed up convergence, but leave less room before the next restart; a third of
        the room serves well on spectra with outliers, of a power law, and without either.
        """
        n_asked = 2 * self.k if self.both else self.k
        n_kept = n_asked + (n_values - n_asked) // 3

        n_low = n_kept // 2 if self.both else 0
        n_high = n_kept - n_low
        return [*range(n_low), *range(n_values - n_high, n_values)]


def smallest_basis(k: int) -> int:
    """Vectors that a search for `k` eigenvalues at each end needs to get on (as in ARPACK)."""
    return 2 * k + 10


def search_ends(start: Tensor, ends: Ends) -> Search:
    """Approximate the outermost eigenpairs, until they are known well enough.

    When the Krylov space is invariant, it is continued from a random vector. An eigenvalue of high
    multiplicity may be found fewer times than it occurs.
    """
    basis_size = min(ends.basis_size, len(start))
    basis = KrylovBasis(start, basis_size)
    projected = np.zeros((basis_size, basis_size))
    generator = torch.Generator().manual_seed(ends.seed ^ _RESTART_SEED)

    # A basis that spans everything leaves nothing to look for.
    max_products = ends.max_products
    if basis_size == len(start):
        max_products = min(max_products, basis_size)

    for n_products in range(1, max_products + 1):
        latest = len(basis) - 1
        image = yield basis.row(latest)
        numbers = torch.stack([torch.dot(image, basis.row(latest)), image.norm()])
        projected[latest, latest], image_norm = numbers.tolist()
        if not math.isfinite(image_norm):
            return _undefined_ritz(basis, n_products)

        basis.project_out(image)
        coupling = _coupling_of(image, image_norm)

        projection = projected[: len(basis), : len(basis)]
        ritz = _ritz_pairs(projection, coupling, basis, n_products)
        if n_products == max_products or ends.is_enough(ritz):
            break

        if len(basis) == basis_size:
            _restart(basis, projected, ritz, coupling, ends)
        else:
            projected[latest + 1, latest] = projected[latest, latest + 1] = coupling

        # Invariant to working precision: what is left of the image is round-off.
        if not coupling:
            image = _draw_beside(basis, generator)
        basis.append(image)

    return ritz


def quadrature(
    start: Tensor, steps: int, *, window: int, seed: int
) -> Generator[Tensor, Tensor, tuple[Array, Array]]:
    """Nodes and weights with which `start' f(A) start / |start|^2` is a sum over `f(node)`.

    Only the latest `window` vectors are kept. With fewer than `steps`, nodes may come twice, but
    then share their weight, so that the density stays right (Chen, Trogdon and Ubaru 2022).

    Args:
        start: Decides the measure.
        steps: Products to spend, at most.
        window: Vectors to keep, and to keep new ones orthogonal to.
        seed: Decides vectors that replace an exhausted Krylov space.
    """
    steps = min(steps, len(start))
    window = min(window, steps)
    basis = KrylovBasis(start, window)
    projected = np.zeros((steps, steps))
    generator = torch.Generator().manual_seed(seed ^ _RESTART_SEED)

    for step in range(steps):
        latest = basis.row(step % window)
        image = yield latest
        projected[step, step] = torch.dot(image, latest).item()
        image_norm = image.norm().item()
        if not math.isfinite(image_norm):
            return np.full(step + 1, np.nan), np.full(step + 1, np.nan)

        basis.project_out(image)
        coupling = _coupling_of(image, image_norm)
        if step + 1 == steps:
            break

        projected[step + 1, step] = projected[step, step + 1] = coupling
        if not coupling:
            image = _draw_beside(basis, generator)

        # A full window lets go of its oldest vector.
        if len(basis) == window:
            basis.put((step + 1) % window, image)
        else:
            basis.append(image)

    nodes, vectors = np.linalg.eigh(projected)
    return nodes, vectors[0] ** 2


def _coupling_of(image: Tensor, image_norm: float) -> float:
    """The length of what the basis leaves of a product; 0 where that is round-off."""
    residual_norm = image.norm().item()
    round_off = 100 * torch.finfo(image.dtype).eps * max(image_norm, 1e-30)
    return 0.0 if residual_norm <= round_off else residual_norm


def _draw_beside(basis: KrylovBasis, generator: torch.Generator) -> Tensor:
    """A random vector, orthogonal to the basis."""
    numbers = torch.randn(
        basis.dimension, generator=generator, dtype=torch.float64, device=generator.device
    )
    vector = numbers.to(basis.row(0))
    basis.project_out(vector)
    return vector


def _restart(basis: KrylovBasis, projected: Array, ritz: Ritz, coupling: float, ends: Ends) -> None:
    """Put the Ritz vectors to keep into the basis, and write the matrix that belongs to them.

    It is diagonal, but for the couplings of all of them to the vector that comes next.
    """
    indices = ends.indices_to_keep(len(ritz.values))
    kept_vectors = ritz.vectors[:, indices]
    basis.shrink(torch.from_numpy(np.ascontiguousarray(kept_vectors.T)))

    projected[:] = 0.0
    np.fill_diagonal(
        projected, np.append(ritz.values[indices], np.zeros(len(projected) - len(indices)))
    )
    projected[len(indices), : len(indices)] = coupling * kept_vectors[-1]
    projected[: len(indices), len(indices)] = coupling * kept_vectors[-1]


def _undefined_ritz(basis: KrylovBasis, n_products: int) -> Ritz:
    """What is known where the loss is not finite: nothing."""
    n_rows = len(basis)
    undefined = np.full(n_rows, np.nan)
    undefined_vectors = np.full((n_rows, n_rows), np.nan)
    return Ritz(undefined, undefined, undefined, undefined_vectors, basis, n_products)


def _ritz_pairs(projected: Array, coupling: float, basis: KrylovBasis, n_products: int) -> Ritz:
    values, vectors = np.linalg.eigh(projected)

    # The residual of a Ritz pair is its last component times the coupling to the next vector.
    residuals = coupling * np.abs(vectors[-1])

    padded = np.concatenate([[-np.inf], values, [np.inf]])
    gaps = np.minimum(values - padded[:-2], padded[2:] - values)
    with np.errstate(divide="ignore", invalid="ignore"):
        sharper = np.where(gaps > residuals, residuals**2 / (gaps - residuals), np.inf)
    bounds = np.minimum(residuals, sharper) if len(values) > 1 else residuals

    return Ritz(values, residuals, bounds, vectors, basis, n_products)
