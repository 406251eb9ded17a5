import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast, get_args

import numpy as np
import xarray as xr
from torch import Tensor, nn

from landscape._curvature.blocks import By, blocks_of
from landscape._curvature.matrix import MATRIX_KINDS, MatrixKind, ProductKind
from landscape._curvature.operators import Operator, is_operator, operator_product
from landscape._curvature.products import MatrixProduct, matrix_vector_product
from landscape._curvature.setup import (
    MatrixRequest,
    covered_parameters,
    curvature_of,
    start_vector,
)
from landscape._curvature.spectrum import Spectrum, SpectrumEffort, measure_spectrum
from landscape._directions.parameters import Params
from landscape._evaluation.checks import check_limits
from resonance_toolkit import (
    AtMost,
    check_choice,
    check_module,
    check_whole,
    describe_targets,
    devices_of,
    name_of,
    preserving_rng,
    provenance,
)

Basis = Literal["device", "host"]
EigenvalueEnds = Literal["both", "largest"]

# Error of products, relative to the norm of the matrix, from which a user should be told.
_LARGE_ERROR = 0.05

_LONG_NAMES = {
    "largest": "largest eigenvalues",
    "largest_residual": "residual norms of the largest eigenvalues",
    "smallest": "smallest eigenvalues",
    "smallest_residual": "residual norms of the smallest eigenvalues",
}


def curvature(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    matrix: MatrixKind | Operator = "hessian",
    k: int = 5,
    ends: EigenvalueEnds = "both",
    by: By | None = None,
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    seed: int = 0,
    tolerance: float = 1e-3,
    max_products: int = 200,
    trace_tolerance: float = 0.02,
    trace_probes: int = 50,
    density_runs: int = 2,
    density_steps: int = 40,
    product: ProductKind = "exact",
    memory: float = 2**31,
    basis: Basis = "device",
    batch_size: int | None = None,
) -> xr.Dataset:
    """Measure the curvature of the loss at the weights: eigenvalues, trace, spectral density.

    The method is Lanczos with full reorthogonalisation and thick restarts. It needs only products
    of the matrix with vectors, computed in eval mode with the attention kernel that can be
    differentiated twice. Parameters that the loss does not reach count as directions without
    curvature. If `L` is the mean loss, `f` the outputs and `w` the parameters, the Hessian is
    `d^2 L / dw^2`, and the Gauss-Newton matrix is `J' (d^2 L / df^2) J` with `J = df / dw`.

    With a model in `DistributedDataParallel`, each process passes data of its own, and all
    processes get the curvature of the mean loss over all data.

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
            A DataLoader with `samples=None` is streamed: it is read again for each product, and
            only its targets are kept. None if `matrix` is an operator.
        loss: `(outputs, targets)` or, for the Hessian, `(model, x, y)`; by default the loss
            that the targets ask for, such as cross-entropy.
        matrix: `"hessian"`, `"gauss-newton"`, or any symmetric operator on the flattened and
            concatenated parameters: an object that multiplies flat vectors by `@` (from
            curvlinops, or scipy's `LinearOperator`), or a function of a flat tensor.
        k: Eigenvalues at each end of the spectrum.
        ends: `"both"` ends of the spectrum. `"largest"` stops as soon as the largest eigenvalues
            are known, after far fewer products; the smallest are then NaN.
        by: `"layer"` measures, instead of the whole matrix, the diagonal block of each module that
            owns parameters. Names or patterns of modules measure the block of each of these,
            including their submodules. All blocks share the passes over the data.
        over: Names or patterns of the parameters; all trained ones by default.
        samples: How many samples to draw, at most; None takes all.
        seed: Determines samples and start vectors.
        tolerance: Allowed error of eigenvalues: relative to the eigenvalue for the largest,
            relative to the norm of the matrix for the smallest.
        max_products: Largest number of products for eigenvalues. An eigenvalue that has not
            converged by then is returned with its residual.
        trace_tolerance: Sampling of the trace stops when its standard error, relative to it, is
            this small.
        trace_probes: Largest number of products for the trace; 0 leaves it out (NaN).
        density_runs: Number of start vectors for the density; 0 leaves it out (NaN).
        density_steps: Lanczos steps from each start vector.
        product: `"exact"` differentiates twice. `"finite difference"` takes two gradients for each
            product; use it for kernels and compiled code that have no second derivatives. The
            attribute `product_error` gives the error of such products, relative to the norm of the
            matrix, and residuals are those against products with another step. Where gradients
            jump, as behind a ReLU, the error is large in single precision; a warning says so.
        memory: Bytes that retained graphs and the vectors of the basis may take. Beyond it, graphs
            are rebuilt for each product, and the basis is restarted at `2 k + 10` vectors.
        basis: `"host"` keeps the vectors of the basis, and computes with them, in main memory,
            which is usually larger than that of an accelerator.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.

    Returns:
        Dataset with

        - `largest (rank)` and `smallest (rank)`, the outermost first (a multiple eigenvalue may
          appear only once), and their residuals `largest_residual` and `smallest_residual`, the
          norms `||A v - value v||`, which are never below the rounding error of a product;
        - `trace` and its standard error `trace_se`;
        - `density (eigenvalue)`, which integrates to 1.

        With `by`, each variable has `layer` as its first dimension. Attributes count the products.

    Raises:
        ValueError: If an argument does not fit, or data change between passes.
        TypeError: If an operator does not return vectors.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> square = lambda outputs, targets: (outputs**2).mean()  # Hessian: diag(4, 1)
        >>> measured = curvature(model, (x, x), loss=square, samples=2, k=1)
        >>> measured["largest"].round(4).values, measured["smallest"].round(4).values
        (array([4.]), array([1.]))
        >>> measured["trace"].round(4).item()
        5.0
    """
    effort = SpectrumEffort(
        k=check_whole("k", k),
        both_ends=check_choice("ends", ends, get_args(EigenvalueEnds)) == "both",
        tolerance=tolerance,
        max_products=check_whole("max_products", max_products),
        trace_tolerance=trace_tolerance,
        trace_probes=check_whole("trace_probes", trace_probes, at_least=0),
        density_runs=check_whole("density_runs", density_runs, at_least=0),
        density_steps=check_whole("density_steps", density_steps),
        memory=memory,
        seed=check_whole("seed", seed, at_least=None),
    )
    check_limits(tolerance=tolerance, trace_tolerance=trace_tolerance, memory=memory)
    check_choice("basis", basis, get_args(Basis))
    check_module(model)

    # What multiplies, and what is to be said about it.
    opening: AbstractContextManager[MatrixProduct]
    if is_operator(matrix):
        _check_operator_alone(data, loss, product)
        params = covered_parameters(model, over)
        opening = nullcontext(operator_product(matrix, params))
        attributes: dict[str, Any] = {"matrix": name_of(matrix)}
    else:
        check_choice("matrix", matrix, MATRIX_KINDS, or_else="an operator")
        request = MatrixRequest(
            data,
            loss=loss,
            matrix=cast("MatrixKind", matrix),
            over=over,
            samples=samples,
            seed=effort.seed,
            memory=memory,
            batch_size=batch_size,
            product=product,
        )
        curvature_matrix = curvature_of(model, request)
        params = curvature_matrix.params
        first_batch = next(iter(curvature_matrix.batches))
        opening = matrix_vector_product(curvature_matrix)
        attributes = {
            "matrix": matrix,
            "product": product,
            "n_samples": curvature_matrix.n_samples,
            "loss": curvature_matrix.objective.loss_name,
            "targets": describe_targets(curvature_matrix.objective.targets, *first_batch),
        }

    blocks = blocks_of(model, params, by)
    templates = [_template_of(params, block, basis) for block in blocks.values()]
    with preserving_rng(devices_of(model)), opening as matrix_product:
        spectrum = measure_spectrum(matrix_product, list(blocks.values()), templates, effort)

    if not np.isfinite(spectrum.columns["largest"][:, 0]).all():
        cause = "`matrix`" if is_operator(matrix) else "`data` or weights"
        warnings.warn(
            "the curvature is not finite at the weights, so that all of it is NaN: "
            f"{cause} may hold NaN or infinity",
            stacklevel=2,
        )
    elif matrix_product.error > _LARGE_ERROR:
        warnings.warn(
            f"finite differences know products only to {matrix_product.error:.2g} of the norm of "
            "the matrix: kinks (such as ReLU's) or rounding are larger than the curvature; take "
            "product='exact', or model.double()",
            stacklevel=2,
        )

    result = _as_dataset(spectrum, list(blocks), k)
    attributes |= {
        "ends": ends,
        "over": over,
        "by": by,
        "seed": effort.seed,
        "n_covered": sum(p.numel() for p in params.values()),
        "basis_size": spectrum.basis_size,
        "product_error": matrix_product.error,
        **{f"products_{name}": count for name, count in spectrum.n_products.items()},
    }
    result.attrs = provenance("landscape.curvature", model, **attributes)
    return result if by is not None else result.isel(layer=0, drop=True)


def _check_operator_alone(data: Any, loss: Any, product: ProductKind) -> None:
    """An operator knows its loss, its data, and how to multiply."""
    if data is not None or loss is not None or product != "exact":
        raise ValueError(
            "`matrix`: an operator brings its own loss, data and products; pass None for `data`, "
            "and neither `loss` nor `product`"
        )


def _template_of(params: Params, block: Sequence[int], basis: Basis) -> Tensor:
    """An empty vector for the parameters of a block."""
    names = list(params)
    block_params = {names[i]: params[names[i]] for i in block}
    return start_vector(block_params, device="cpu" if basis == "host" else None)


def _as_dataset(spectrum: Spectrum, layers: list[str], k: int) -> xr.Dataset:
    variables: dict[str, Any] = {
        name: (("layer", "rank"), column, {"long_name": _LONG_NAMES[name]})
        for name, column in spectrum.columns.items()
    }
    variables |= {
        "trace": ("layer", spectrum.trace, {"long_name": "trace"}),
        "trace_se": ("layer", spectrum.trace_error, {"long_name": "standard error of the trace"}),
        "density": (("layer", "eigenvalue"), spectrum.density, {"long_name": "spectral density"}),
    }
    return xr.Dataset(
        variables,
        coords={
            "layer": ("layer", layers, {"long_name": "layer"}),
            "rank": ("rank", np.arange(k), {"long_name": "rank, outermost first"}),
            "eigenvalue": ("eigenvalue", spectrum.eigenvalues, {"long_name": "eigenvalue"}),
        },
    )
