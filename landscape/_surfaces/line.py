import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape._directions.parameters import Extra
from landscape._directions.states import State, difference, parameter_names, state_tensors
from landscape._directions.vectors import norm
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.points import running
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.axes import check_directions, with_axes
from landscape._surfaces.dataset import as_surface
from resonance_toolkit import AtMost

Array = NDArray[np.float64]


def line(
    model: nn.Module,
    data: Any,
    *,
    to: State | None = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    direction: str | Mapping[str, Tensor] = "random",
    normalisation: str | None = None,
    over: str | Sequence[str] | None = None,
    extra: Extra | None = None,
    samples: int | None = AtMost(500),
    size: int = 51,
    span: tuple[float, float] | None = None,
    seed: int = 0,
    bn: str = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on a line: to another model, or along a direction.

    Args:
        model: Called as `model(inputs)`; left as it was found. It stands at alpha = 0.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        to: A model or state dict, at alpha = 1. Everything then moves, running statistics of batch
            norm included (variances stay at or above 0), so that both ends have their own loss.
        loss: As in `grid`.
        metrics: As in `grid`.
        direction: Without `to`: a name or a mapping, as in `grid`.
        normalisation: As in `grid`; not with `to`.
        over: As in `grid`; not with `to`.
        extra: As in `grid`; not with `to`.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along the line; both ends, alpha = 0 and 1, are added if they are not among
            them.
        span: Where alpha begins and ends; (0, 1) with `to`, else (-1, 1).
        seed: Decides samples and direction.
        bn: As in `grid`.
        batch_size: As in `grid`.
        checkpoint: As in `grid`.
        executor: As in `grid`.

    Returns:
        Dataset with `loss`, `loss_se`, `accuracy`, `evaluated` and metrics over `alpha`, and
        `barrier`: how far the loss rises above the straight line between its values at both ends
        (0 if it never does; NaN without `to`).

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> import torch
        >>> here, there = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.ones_(here.weight), nn.init.constant_(there.weight, -1)
        >>> data = torch.ones(2, 1), torch.ones(2, 1)
        >>> apart = lambda outputs, targets: (outputs**2 - targets) ** 2
        >>> found = line(here, data, to=there, loss=apart, samples=2, size=5)
        >>> found["loss"].values, found["barrier"].item()
        (array([0.    , 0.5625, 1.    , 0.5625, 0.    ]), 1.0)
    """
    alphas = _coordinates(size, span or ((0.0, 1.0) if to is not None else (-1.0, 1.0)), to)
    if to is not None and (over, extra, normalisation, direction) != (None, None, None, "random"):
        raise ValueError("`to`: leaves no choice of direction, normalisation, over or extra")
    if not isinstance(direction, str | Mapping):
        raise TypeError(
            f"`direction`: expected a name or a mapping, got {type(direction).__name__}"
        )
    how = check_directions(direction, normalisation) if to is None else "none"
    scene = build_scene(
        model, data, loss, metrics, over, extra, samples=samples, seed=seed, bn=bn,
        batch_size=batch_size,
    )  # fmt: skip
    if to is None:
        scene = with_axes(scene, direction, how, extra, count=1)
        length = norm(scene.axes[0])
    else:
        origin = state_tensors(model)
        step = difference(to, origin, "to")
        scene = replace(scene, moving=origin, axes=(step,))
        length = norm({name: step[name] for name in parameter_names(model)})
    points = alphas[:, None]
    settings = {"directions": "to" if to is not None else _name(direction), "normalisation": how}
    scene = calibrate(scene, points)
    with running(
        scene, points, piece=10, checkpoint=checkpoint, executor=executor, settings=settings
    ) as run:
        run.fill(np.arange(len(points)))
    attrs = describe(scene, "landscape.line", over=over, **settings) | {"length_alpha": length}
    values = dict(zip(scene.values, run.table.T, strict=True))
    found = as_surface(values, {"alpha": alphas}, attrs=attrs)
    height = barrier(alphas, values["loss"]) if to is not None else math.nan
    note = {"long_name": "rise of the loss above both ends"}
    return found.assign(barrier=((), height, note))


def barrier(alphas: Array, losses: Array) -> float:
    """Largest rise above the straight line between the losses at 0 and 1; NaN if unknown."""
    inside = (alphas >= 0) & (alphas <= 1)
    t, between = alphas[inside], losses[inside]
    return float(np.max(between - ((1 - t) * between[0] + t * between[-1])))


def _coordinates(size: int, span: tuple[float, float], to: State | None) -> Array:
    if type(size) is not int or size < 2:
        raise ValueError(f"`size`: expected a whole number of at least 2, got {size!r}")
    pair = isinstance(span, Sequence) and all(isinstance(s, int | float) for s in span)
    if not pair or len(span) != 2 or not -math.inf < span[0] < span[1] < math.inf:
        raise ValueError(f"`span`: expected two finite numbers, smaller first, got {span!r}")
    low, high = span
    if to is not None and not low <= 0 < 1 <= high:
        raise ValueError(f"`span`: expected to hold both ends, 0 and 1, got {span!r}")
    even = low + (high - low) * np.arange(size) / (size - 1)
    fixed = [end for end in ((0.0, 1.0) if to is not None else (0.0,)) if low <= end <= high]
    away = [np.abs(even - end) > 1e-9 * (high - low) for end in fixed]
    return np.unique(np.append(even[np.all(away, axis=0)] if fixed else even, fixed))


def _name(direction: str | Mapping[str, Tensor]) -> str:
    return direction if isinstance(direction, str) else "given"
