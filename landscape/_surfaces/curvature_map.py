from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._curvature.curvature import start_vector
from landscape._curvature.estimates import extreme_eigenvalues
from landscape._curvature.matrix import MATRICES, Curvature, multiplying
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.checks import check_counts, check_tolerances
from landscape._evaluation.point import standing
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.axes import Directions, check_directions, with_axes
from landscape._surfaces.dataset import as_surface
from landscape._surfaces.grid import plane_coordinates
from resonance_toolkit import AtMost, spread


def curvature_map(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    matrix: str = "hessian",
    directions: Directions = "random",
    normalisation: str | None = None,
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    size: int | tuple[int, int] = 11,
    span: float | tuple[float, float] = 1.0,
    seed: int = 0,
    tolerance: float = 1e-2,
    max_products: int = 100,
    memory: int = 2**31,
    batch_size: int | None = None,
) -> xr.Dataset:
    """Map the extreme eigenvalues of the curvature over a coarse plane through the weights.

    The ratio `smallest / largest` tells how convex the surroundings are: what looks convex in a
    plane may not be so in other directions (Li et al. 2018).

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        loss: As in `curvature`.
        matrix: As in `curvature`.
        directions: As in `grid`.
        normalisation: As in `grid`.
        over: As in `grid`; the curvature is that of the same parameters.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`.
        seed: Decides samples, directions and start vectors.
        tolerance: As in `curvature`.
        max_products: Products allowed at each point.
        memory: As in `curvature`.
        batch_size: As in `curvature`.

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
        >>> found = curvature_map(model, (x, x), loss=fourth, directions=[one, one], samples=2,
        ...                       size=3)
        >>> found["largest"].round(3).values
        array([[48., 12.,  0.],
               [12.,  0., 12.],
               [ 0., 12., 48.]])
    """
    alphas, betas = plane_coordinates(size, span)
    how = check_directions(directions, normalisation)
    check_counts(max_products=max_products)
    check_tolerances(tolerance=tolerance, memory=memory)
    if matrix not in MATRICES:
        raise ValueError(f"`matrix`: expected {' | '.join(MATRICES)}, got {matrix!r}")
    scene = build_scene(
        model, data, loss, None, over, None, samples=samples, seed=seed, bn="frozen",
        batch_size=batch_size,
    )  # fmt: skip
    if matrix == "gauss-newton" and scene.objective.kind != "outputs":
        raise ValueError("`loss`: Gauss-Newton needs a callable of (outputs, targets)")
    scene = calibrate(with_axes(scene, directions, how, None), np.empty((0, 2)))
    about = Curvature(
        model, scene.moving, scene.batches, scene.objective, matrix, scene.n_samples, memory
    )
    points = [(a, b) for a in alphas.tolist() for b in betas.tolist()]
    table = np.empty((len(points), len(scene.values) + 2))
    with standing(scene) as at:

        def work(point: tuple[float, float]) -> list[float]:
            values = at(point)  # and the model stays there
            with multiplying(about) as product:
                like = start_vector(about)
                ends = extreme_eigenvalues(product, like, 1, tolerance, max_products, seed)
            return [*values, ends.values[-1], ends.values[0]]

        for index, row in spread(work, points, label="curvature", unit="point"):
            table[index] = row
    names = [*scene.values, "largest", "smallest"]
    columns = dict(zip(names, table.T, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        columns["ratio"] = columns["smallest"] / columns["largest"]
    found = as_surface(
        columns,
        {"alpha": alphas, "beta": betas},
        attrs=describe(scene, "landscape.curvature_map", normalisation=how, matrix=matrix),
    )
    found["largest"].attrs["long_name"] = "largest eigenvalue"
    found["smallest"].attrs["long_name"] = "smallest eigenvalue"
    found["ratio"].attrs["long_name"] = "smallest over largest eigenvalue"
    return found
