import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from landscape._curvature.estimates import (
    Effort,
    estimate_density,
    estimate_trace,
    extreme_eigenvalues,
)
from landscape._curvature.matrix import MatrixKind, matrix_vector_product
from landscape._curvature.setup import MatrixRequest, curvature_of, start_vector
from landscape._evaluation.checks import check_limits
from resonance_toolkit import AtMost, check_whole, provenance

Array = NDArray[np.float64]


def curvature(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    matrix: MatrixKind = "hessian",
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
    memory: float = 2**31,
    batch_size: int | None = None,
) -> xr.Dataset:
    """Measure the curvature of the loss at the weights: eigenvalues, trace, spectral density.

    Lanczos' method with full reorthogonalisation on matrix-vector products, in eval mode, with the
    attention kernel that can be differentiated twice. Parameters that the loss does not reach count
    as directions without curvature. With `L` the mean loss, `f` the outputs and `w` the parameters,
    the Hessian is `d^2 L / dw^2` and the Gauss-Newton matrix `J' (d^2 L / df^2) J`, `J = df / dw`.

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (positional arguments of
            the model) or a mapping (its keywords); batches padded to unequal lengths stay apart.
            A DataLoader with `samples=None` is streamed: passed over for each product and never
            held, but for its targets, once.
        loss: `(outputs, targets)` or, for the Hessian, `(model, x, y)`; by default what targets
            ask for, such as cross-entropy of classes.
        matrix: `"hessian"` or `"gauss-newton"`.
        k: Eigenvalues at each end of the spectrum.
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
        >>> measured = curvature(model, (x, x), loss=square, samples=2, k=1)
        >>> measured["largest"].round(4).values, measured["smallest"].round(4).values
        (array([4.]), array([1.]))
        >>> measured["trace"].round(4).item()
        5.0
    """
    k = check_whole("k", k)
    max_products = check_whole("max_products", max_products)
    density_steps = check_whole("density_steps", density_steps)
    trace_probes = check_whole("trace_probes", trace_probes, at_least=0)
    density_runs = check_whole("density_runs", density_runs, at_least=0)
    seed = check_whole("seed", seed, at_least=None)
    check_limits(tolerance=tolerance, trace_tolerance=trace_tolerance)

    request = MatrixRequest(
        data,
        loss=loss,
        matrix=matrix,
        over=over,
        samples=samples,
        seed=seed,
        memory=memory,
        batch_size=batch_size,
    )
    curvature_matrix = curvature_of(model, request)
    template = start_vector(curvature_matrix)

    # The trace takes over the Lanczos basis of the eigenvalues: their products serve twice.
    with matrix_vector_product(curvature_matrix) as product:
        effort = Effort(tolerance, max_products, seed)
        ritz = extreme_eigenvalues(product, template, k, effort)
        trace, trace_error, probes = estimate_trace(
            product, ritz, trace_tolerance, trace_probes, seed
        )
        values, density = estimate_density(product, template, density_runs, density_steps, seed)

    if not np.isfinite(ritz.values).all():
        warnings.warn(
            "the curvature is not finite at the weights, so that all of it is NaN: `data` or "
            "weights may hold NaN or infinity",
            stacklevel=2,
        )

    # Lanczos' own estimate goes on to fall where the products cannot be told apart any more.
    rounding = max(torch.finfo(p.dtype).eps for p in curvature_matrix.params.values())
    residuals = np.maximum(ritz.residuals, rounding * np.abs(ritz.values).max())

    columns = {
        "largest": (ritz.values[::-1], "largest eigenvalues"),
        "largest_residual": (residuals[::-1], "residual norms of the largest eigenvalues"),
        "smallest": (ritz.values, "smallest eigenvalues"),
        "smallest_residual": (residuals, "residual norms of the smallest eigenvalues"),
    }
    variables: dict[str, Any] = {
        name: ("rank", _first_or_nan(column, k), {"long_name": long_name})
        for name, (column, long_name) in columns.items()
    }
    variables |= {
        "trace": ((), trace, {"long_name": "trace"}),
        "trace_se": ((), trace_error, {"long_name": "standard error of the trace"}),
        "density": ("eigenvalue", density, {"long_name": "spectral density"}),
    }

    return xr.Dataset(
        variables,
        coords={
            "rank": ("rank", np.arange(k), {"long_name": "rank, outermost first"}),
            "eigenvalue": ("eigenvalue", values, {"long_name": "eigenvalue"}),
        },
        attrs=provenance(
            "landscape.curvature",
            model,
            matrix=matrix,
            over=over,
            seed=seed,
            n_samples=curvature_matrix.n_samples,
            n_covered=len(template),
            loss=curvature_matrix.objective.loss_name,
            targets=curvature_matrix.objective.targets,
            products_eigenvalues=len(ritz.values),
            products_trace=probes,
            products_density=density_runs * min(density_steps, len(template)),
        ),
    )


def _first_or_nan(column: Array, k: int) -> Array:
    """The first `k` numbers; of a matrix with fewer eigenvalues, the rest is undefined."""
    return np.append(column[:k], np.full(max(k - len(column), 0), math.nan))
