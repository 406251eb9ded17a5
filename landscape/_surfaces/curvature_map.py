from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._curvature.estimates import extreme_pair
from landscape._curvature.matrix import MATRIX_KINDS, CurvatureMatrix, MatrixKind
from landscape._curvature.setup import check_matrix_fits, matrix_of
from landscape._directions.parameters import Params
from landscape._directions.vectors import Normalisation
from landscape._evaluation.checks import check_limits
from landscape._evaluation.points import EvaluateAll, evaluate
from landscape._evaluation.problem import Measurement, PointProbe, Request
from landscape._surfaces.axes import (
    Directions,
    choose_directions,
    either_spelling,
    make_problem_along,
    plane_coordinates,
)
from landscape._surfaces.dataset import as_surface, attributes_of
from resonance_toolkit import AtMost, check_choice, check_whole

_LONG_NAMES = {
    "largest": "largest eigenvalue",
    "smallest": "smallest eigenvalue",
    "ratio": "smallest over largest eigenvalue",
}


def curvature_map(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    matrix: MatrixKind = "hessian",
    directions: Directions = "random",
    normalisation: Normalisation | None = None,
    normalization: Normalisation | None = None,
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    size: int | tuple[int, int] = 11,
    span: float | tuple[float, float] = 1.0,
    seed: int = 0,
    tolerance: float = 1e-2,
    max_products: int = 100,
    memory: float = 2**31,
    batch_size: int | None = None,
) -> xr.Dataset:
    """Map the extreme eigenvalues of the curvature over a coarse plane through the weights.

    The ratio `smallest / largest` shows how convex the loss is around a point in all directions: it
    may look convex in the plane and still not be so in other directions (Li et al. 2018).

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        loss: `(outputs, targets)` or, for the Hessian, `(model, x, y)`; by default the loss
            that the targets ask for, such as cross-entropy.
        matrix: `"hessian"` or `"gauss-newton"`; see `curvature`.
        directions: `"random"`, `"gradient"` (then random), `"hessian"` (the two eigenvectors of the
            largest eigenvalues), or one or two mappings of tensors by parameter name; a missing
            second one is random.
        normalisation: `"filter"` (each filter to the norm of its weights), `"layer"` (each tensor
            to the norm of its weights), `"tensor"` (every tensor to the same norm, and the whole
            direction to norm 1), `"unit"` (the whole direction to norm 1) or `"none"`;
            by default `"filter"` for random directions, `"none"` for directions that you pass, else
            `"unit"`.
        normalization: Another spelling of `normalisation`.
        over: Names or patterns of the parameters that move; by default trained weights of two or
            more dimensions. The curvature is that of the same parameters.
        samples: How many samples to draw, at most; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`.
        seed: Determines samples, directions and start vectors.
        tolerance: Error allowed in eigenvalues: relative in the largest, relative to the norm of
            the matrix in the smallest.
        max_products: Products allowed at each point.
        memory: Bytes that retained graphs may take. Beyond it, graphs are rebuilt for each product.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.

    Returns:
        Dataset over `(alpha, beta)` with `loss`, `loss_se`, `accuracy`, `evaluated`, the extreme
        eigenvalues `largest` and `smallest`, and `ratio`, smallest over largest.

    Raises:
        ValueError: If an argument does not fit.

    Examples:
        >>> import torch
        >>> x, one = torch.ones(2, 1), {"weight": torch.ones(1, 1)}
        >>> fourth = lambda outputs, targets: outputs**4  # curvature 12 (alpha + beta) ** 2
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> surface = curvature_map(model, (x, x), loss=fourth, directions=[one, one], samples=2,
        ...                         size=3)
        >>> surface["largest"].round(3).values
        array([[48., 12.,  0.],
               [12.,  0., 12.],
               [ 0., 12., 48.]])
    """
    alphas, betas = plane_coordinates(size, span)
    choice = choose_directions(
        directions, either_spelling(normalisation, normalization), over=over, extra=None
    )
    max_products = check_whole("max_products", max_products)
    check_limits(tolerance=tolerance, memory=memory)
    check_choice("matrix", matrix, MATRIX_KINDS)

    # Evaluated at each point, while the model is there.
    def make_probe(measurement: Measurement, tensors: Params) -> PointProbe:
        check_matrix_fits(matrix, measurement.objective.kind)
        curvature_matrix = matrix_of(measurement, tensors, matrix, memory)
        settings = tolerance, max_products, measurement.seed
        measure = partial(_measure_extremes, curvature_matrix, *settings)
        return PointProbe(("largest", "smallest"), measure)

    request = Request(data, loss=loss, samples=samples, seed=seed, batch_size=batch_size)
    problem = make_problem_along(model, request, choice, make_probe=make_probe)
    evaluation = evaluate(
        problem,
        np.array([(alpha, beta) for alpha in alphas for beta in betas]),
        points_per_piece=len(betas),
        strategy=EvaluateAll(label="curvature"),
    )

    columns = evaluation.values
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["ratio"] = columns["smallest"] / columns["largest"]

    surface = as_surface(
        columns,
        {"alpha": alphas, "beta": betas},
        attributes=attributes_of(
            evaluation,
            "landscape.curvature_map",
            normalisation=choice.normalisation,
            matrix=matrix,
        ),
    )
    for name, long_name in _LONG_NAMES.items():
        surface[name].attrs["long_name"] = long_name
    return surface


def _measure_extremes(
    matrix: CurvatureMatrix, tolerance: float, max_products: int, seed: int
) -> list[float]:
    """The largest and the smallest eigenvalue, wherever the weights are."""
    ritz = extreme_pair(matrix, tolerance, max_products, seed)
    return [ritz.values[-1], ritz.values[0]]
