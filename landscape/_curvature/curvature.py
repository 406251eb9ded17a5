import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from landscape._curvature.estimates import estimate_density, estimate_trace, extreme_eigenvalues
from landscape._curvature.matrix import MATRICES, Curvature, multiplying
from landscape._directions.parameters import Params, moving_tensors
from landscape._evaluation.calibrate import micro_batches
from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.checks import check_counts, check_tolerances
from landscape._evaluation.objective import make_objective
from landscape._evaluation.samples import fixed_samples, refuse_changes, refuse_ignored
from resonance_toolkit import AtMost, preserving_rng, provenance, unwrap


def curvature(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    matrix: str = "hessian",
    k: int = 5,
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    seed: int = 0,
    tolerance: float = 1e-3,
    max_products: int = 200,
    trace_tolerance: float = 0.02,
    trace_probes: int = 50,
    density_runs: int = 2,
    density_steps: int = 40,
    memory: int = 2**31,
    batch_size: int | None = None,
) -> xr.Dataset:
    """Measure the curvature of the loss at the weights: eigenvalues, trace, spectral density.

    Lanczos' method with full reorthogonalisation on matrix-vector products, in eval mode, with the
    attention kernel that can be differentiated twice. Parameters that the loss does not reach count
    as directions without curvature.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches. A DataLoader with
            `samples=None` is streamed: passed over for each product and never held.
        loss: `(outputs, targets)` or, for the Hessian, `(model, x, y)`; cross-entropy by default.
        matrix: `"hessian"` or `"gauss-newton"`.
        k: Eigenvalues wanted at each end of the spectrum.
        over: Names or patterns of the parameters; all trained ones by default.
        samples: How many samples to draw, if there are so many; None takes all.
        seed: Decides samples and start vectors.
        tolerance: Error allowed in eigenvalues: relative in the largest, relative to the norm of
            the matrix in the smallest.
        max_products: Products allowed for eigenvalues; what has not converged by then is given
            with its residual.
        trace_tolerance: Standard error of the trace, relative to it, at which probing stops.
        trace_probes: Products allowed for the trace; 0 leaves it out (NaN).
        density_runs: Start vectors of the density; 0 leaves it out (NaN).
        density_steps: Lanczos steps from each.
        memory: Bytes that retained graphs may take; beyond it, they are made anew for each product.
        batch_size: Samples at a time; by default as many as keep activations in the cache.

    Returns:
        Dataset with `largest (rank)` and `smallest (rank)`, outermost first (a multiple eigenvalue
        may be found once only), `largest_residual` and `smallest_residual`, the norms
        `||A v - value v||`, no smaller than the rounding of a product; `trace` and
        `trace_se`; `density (eigenvalue)`, which integrates to 1. Attributes count the products.

    Raises:
        ValueError: If an argument does not fit, or data change between passes.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> square = lambda outputs, targets: (outputs**2).mean()  # Hessian: diag(4, 1)
        >>> found = curvature(model, (x, x), loss=square, samples=2, k=1)
        >>> found["largest"].round(4).values, found["smallest"].round(4).values
        (array([4.]), array([1.]))
        >>> found["trace"].round(4).item()
        5.0
    """
    check_counts(k=k, max_products=max_products, density_steps=density_steps)
    for name, value in (("trace_probes", trace_probes), ("density_runs", density_runs)):
        if type(value) is not int or value < 0:
            raise ValueError(f"`{name}`: expected a whole number of at least 0, got {value!r}")
    check_tolerances(tolerance=tolerance, trace_tolerance=trace_tolerance)
    about = curvature_of(
        model, data, loss, matrix, over, samples=samples, seed=seed, memory=memory,
        batch_size=batch_size,
    )  # fmt: skip
    like = start_vector(about)
    with preserving_rng(), multiplying(about) as product:
        ends = extreme_eigenvalues(product, like, k, tolerance, max_products, seed)
        trace, error, probes = estimate_trace(product, ends, trace_tolerance, trace_probes, seed)
        values, density = estimate_density(product, like, density_runs, density_steps, seed)
    # Lanczos' own estimate goes on to fall where the products cannot be told apart any more.
    rounding = max(torch.finfo(p.dtype).eps for p in about.params.values())
    residuals = np.maximum(ends.residuals, rounding * np.abs(ends.values).max())
    rows = {
        "largest": (ends.values[::-1], "largest eigenvalues"),
        "largest_residual": (residuals[::-1], "residual norms of the largest eigenvalues"),
        "smallest": (ends.values, "smallest eigenvalues"),
        "smallest_residual": (residuals, "residual norms of the smallest eigenvalues"),
    }
    variables: dict[str, Any] = {
        name: ("rank", _padded(row, k), {"long_name": text}) for name, (row, text) in rows.items()
    }
    variables |= {
        "trace": ((), trace, {"long_name": "trace"}),
        "trace_se": ((), error, {"long_name": "standard error of the trace"}),
        "density": ("eigenvalue", density, {"long_name": "spectral density"}),
    }
    return xr.Dataset(
        variables,
        coords={
            "rank": ("rank", np.arange(k), {"long_name": "rank, outermost first"}),
            "eigenvalue": ("eigenvalue", values, {"long_name": "eigenvalue"}),
        },
        attrs=provenance(
            "landscape.curvature", model, matrix=matrix, over=over, seed=seed,
            n_samples=about.n_samples, n_covered=len(like), loss_function=about.objective.loss_name,
            products_eigenvalues=len(ends.values), products_trace=probes,
            products_density=density_runs * min(density_steps, len(like)),
        ),
    )  # fmt: skip


def curvature_of(
    model: nn.Module,
    data: Any,
    loss: Callable[..., Any] | None,
    matrix: str,
    over: str | Sequence[str] | None,
    *,
    samples: int | None,
    seed: int,
    memory: int,
    batch_size: int | None,
) -> Curvature:
    """Check the arguments, and bring together what products need."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model`: expected an nn.Module, got {type(model).__name__}")
    if matrix not in MATRICES:
        raise ValueError(f"`matrix`: expected {' | '.join(MATRICES)}, got {matrix!r}")
    check_tolerances(memory=memory)
    objective = make_objective(loss, None)
    if matrix == "gauss-newton" and objective.kind != "outputs":
        raise ValueError("`loss`: Gauss-Newton needs a callable of (outputs, targets)")
    trained = [n for n, p in unwrap(model).named_parameters() if p.requires_grad]
    params = moving_tensors(model, over or trained or "**", None)
    if samples is None and isinstance(data, DataLoader):
        batches: Any = Streamed(data, seed)
        refuse_changes(batches.first(2), batches.first(2))
        n_samples = 0
        for x, y in batches:
            refuse_ignored(y, objective)
            n_samples += len(tree_leaves(x)[0])
    else:
        drawn = fixed_samples(model, data, objective, samples, seed)
        batches = micro_batches(model, drawn, batch_size, whole=objective.is_weighted)
        n_samples = sum(len(tree_leaves(x)[0]) for x, _ in batches)
    return Curvature(model, params, batches, objective, matrix, n_samples, memory)


class Streamed:
    """A loader that gives the same batches on every pass, or is refused."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader, self.seed = loader, seed

    def __iter__(self) -> Iterator[Any]:
        with preserving_rng():
            torch.manual_seed(self.seed)
            yield from self.loader

    def first(self, count: int) -> list[str]:
        """Fingerprints of the first batches of a pass."""
        return [fingerprint([batch]) for batch in islice(self, count)]


def start_vector(about: Curvature) -> Tensor:
    """An empty vector of the right length, type and device.

    At least float32: a basis at half precision is neither orthogonal nor known to be closed.
    """
    params = about.params.values()
    widest = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
    length = sum(p.numel() for p in params)
    return torch.empty(length, dtype=widest, device=next(iter(params)).device)


def split_vector(vector: Tensor, params: Params) -> Params:
    """A flat vector as tensors by parameter name."""
    pieces = vector.split([p.numel() for p in params.values()])
    return {n: v.to(p.dtype).view_as(p) for (n, p), v in zip(params.items(), pieces, strict=True)}


def _padded(row: Any, k: int) -> Any:
    # Fewer parameters than eigenvalues wanted: the rest is undefined.
    return np.append(row[:k], np.full(max(k - len(row), 0), math.nan))
