import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from landscape._directions.parameters import Extra
from landscape._directions.vectors import cosine, norm
from landscape._evaluation.adaptive import fill_adaptively, with_margins
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.point import Scene
from landscape._evaluation.points import running
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.axes import Directions, check_directions, with_axes
from landscape._surfaces.dataset import as_surface
from resonance_toolkit import AtMost

Array = NDArray[np.float64]


def grid(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    directions: Directions = "random",
    normalisation: str | None = None,
    over: str | Sequence[str] | None = None,
    extra: Extra | None = None,
    samples: int | None = AtMost(500),
    size: int | tuple[int, int] = 51,
    span: float | tuple[float, float] = 1.0,
    seed: int = 0,
    bn: str = "frozen",
    method: str = "exact",
    tolerance: float = 1e-2,
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on a plane through the weights.

    The plane is `weights + alpha * first + beta * second`. With the default, Gaussian directions,
    orthogonalised, then scaled filter by filter to the norms of the weights (Li et al. 2018), a
    distance of 1 moves every filter by its own norm. The model is evaluated in eval mode, without
    dropout; random numbers that it draws are the same at every point. With an odd `size` the model
    itself is a sample, at (0, 0).

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; cross-entropy by default.
        metrics: Further values by name: callables like `loss`, of `(model)` alone, or
            loss-landscapes metrics.
        directions: `"random"`, `"gradient"` (then random), `"hessian"` (the two eigenvectors of the
            largest eigenvalues), or one or two mappings of tensors by parameter name, such as
            those of `principal_directions`; a missing second one is random.
        normalisation: `"filter"`, `"layer"`, `"unit"` (as one vector) or `"none"`; by default
            `"filter"` for random directions, `"none"` for given ones, else `"unit"`.
        over: Names or patterns of the parameters that move; by default trained weights of two or
            more dimensions, so neither biases nor norm parameters.
        extra: A module (say, a probe) or mapping of tensors that directions cover as well, under
            names that start with `"extra."`.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`.
        seed: Decides samples and directions.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        method: `"exact"` evaluates every point; `"adaptive"` evaluates few and interpolates, until
            the estimated error is below `tolerance`, or all points are evaluated.
        tolerance: Largest error of an interpolated loss, relative to the range of the surface.
        batch_size: Samples at a time; by default as many as keep activations in the cache.
        checkpoint: A file for finished points: the same call goes on from there after a kill.
        executor: Where pieces of the plane are evaluated; by default in this process.

    Returns:
        Dataset with `loss (alpha, beta)`, its standard error over samples `loss_se` (NaN if `loss`
        gives one number per batch), `accuracy` (NaN if targets are no classes), `evaluated`, and
        the metrics. Non-finite values are kept, and counted in the attribute `n_non_finite`.

    Raises:
        ValueError: If an argument does not fit, data change between passes, or nothing can move.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> import torch
        >>> model, one = nn.Linear(1, 1, bias=False), {"weight": torch.ones(1, 1)}
        >>> x = torch.ones(2, 1)
        >>> y = model(x).detach()  # a perfect fit, so loss = (alpha + beta) ** 2
        >>> surface = grid(model, (x, y), loss=nn.functional.mse_loss, directions=[one, one],
        ...                samples=2, size=3)
        >>> surface["loss"].round(5).values
        array([[4., 1., 0.],
               [1., 0., 1.],
               [0., 1., 4.]])
    """
    alphas, betas = plane_coordinates(size, span)
    how = check_directions(directions, normalisation)
    if method not in ("exact", "adaptive"):
        raise ValueError(f"`method`: expected exact | adaptive, got {method!r}")
    number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not (number and 0 < tolerance < math.inf):
        raise ValueError(f"`tolerance`: expected a positive number, got {tolerance!r}")
    scene = build_scene(
        model, data, loss, metrics, over, extra, samples=samples, seed=seed, bn=bn,
        batch_size=batch_size,
    )  # fmt: skip
    scene = with_axes(scene, directions, how, extra)
    points = np.array([(a, b) for a in alphas for b in betas])
    settings: dict[str, Any] = {
        "directions": directions if isinstance(directions, str) else "given",
        "normalisation": how,
        "method": method,
        "tolerance": float(tolerance) if method == "adaptive" else 0.0,
    }
    scene = calibrate(scene, points)
    if method == "adaptive":
        scene = with_margins(scene)
    with running(
        scene, points, piece=len(betas), checkpoint=checkpoint, executor=executor, settings=settings
    ) as run:
        if method == "adaptive":
            table, found = fill_adaptively(run, (len(alphas), len(betas)), scene, tolerance)
        else:
            run.fill(np.arange(len(points)))
            table, found = run.table, {"error_estimate": 0.0}
    return as_surface(
        dict(zip(scene.values, table.T, strict=False)),
        {"alpha": alphas, "beta": betas},
        attrs=describe(scene, "landscape.grid", over=over, **settings)
        | {"length_alpha": norm(scene.axes[0]), "length_beta": norm(scene.axes[1])}
        | {"cosine_of_axes": cosine(*scene.axes), "length_on_model": _length_on_model(scene)}
        | found,
        evaluated=run.done,
    )


def _length_on_model(scene: Scene) -> float:
    """Mean length of the axes, without what they cover of `extra`."""
    own = [name for name in scene.moving if not name.startswith("extra.")]
    lengths = [math.hypot(*(norm({name: axis[name]}) for name in own)) for axis in scene.axes]
    return sum(lengths) / len(lengths)


def plane_coordinates(
    size: int | tuple[int, int], span: float | tuple[float, float]
) -> tuple[Array, Array]:
    """Check `size` and `span`, and lay out both axes; 0 is exactly 0 where it is a point."""
    sizes = size if isinstance(size, tuple) else (size, size)
    spans = span if isinstance(span, tuple) else (span, span)
    if len(sizes) != 2 or any(type(n) is not int or n < 2 for n in sizes):
        raise ValueError(f"`size`: expected a whole number of at least 2, or two, got {size!r}")
    numbers = all(isinstance(s, int | float) and not isinstance(s, bool) for s in spans)
    if len(spans) != 2 or not numbers or not all(0 < s < math.inf for s in spans):
        raise ValueError(f"`span`: expected a positive finite number, or two, got {span!r}")
    # Whole numbers over a whole number: symmetric to the last bit, unlike np.linspace.
    first, second = (
        s * np.arange(1 - n, n, 2, dtype=float) / (n - 1) for n, s in zip(sizes, spans, strict=True)
    )
    return first, second
