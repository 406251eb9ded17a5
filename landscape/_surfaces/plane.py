import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from landscape._directions.parameters import Params
from landscape._directions.states import State, combine, difference, parameter_names, state_tensors
from landscape._directions.vectors import dot
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.points import running
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.dataset import as_surface
from resonance_toolkit import AtMost

Array = NDArray[np.float64]


def plane(
    models: Sequence[State],
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    samples: int | None = AtMost(500),
    size: int = 51,
    margin: float = 0.2,
    seed: int = 0,
    bn: str = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the plane through three models.

    The axes are orthonormal, so that distances and angles on paper are those in parameter space:
    the first model stands at (0, 0), the second on the alpha axis, the third above it.

    Args:
        models: Three models or state dicts; the first must be a module: it is what runs, and is
            left as it was found. Every parameter moves, and running statistics along with them
            (variances stay at or above 0).
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        loss: As in `grid`.
        metrics: As in `grid`.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        margin: Room around the three models, relative to their extent.
        seed: Decides the samples.
        bn: As in `grid`.
        batch_size: As in `grid`.
        checkpoint: As in `grid`.
        executor: As in `grid`.

    Returns:
        Dataset with `loss`, `loss_se`, `accuracy`, `evaluated` and metrics over `(alpha, beta)`,
        and over `model` (0, 1, 2) where they stand, `model_alpha` and `model_beta`, and their own
        loss, `model_loss`.

    Raises:
        ValueError: If the models are on one line, or do not fit each other.

    Examples:
        >>> import torch
        >>> origin, x = nn.Linear(2, 1, bias=False), torch.eye(2)
        >>> _ = nn.init.zeros_(origin.weight)
        >>> others = [{"weight": torch.tensor([[3.0, 0]])}, {"weight": torch.tensor([[1.0, 4]])}]
        >>> found = plane([origin, *others], (x, x), loss=lambda o, y: o.mean(), samples=2, size=2)
        >>> found["model_alpha"].values, found["model_beta"].values
        (array([0., 3., 1.]), array([0., 0., 4.]))
    """
    if not isinstance(models, Sequence) or len(models) != 3 or not isinstance(models[0], nn.Module):
        raise ValueError("`models`: expected three models or state dicts, the first a module")
    if type(size) is not int or size < 2:
        raise ValueError(f"`size`: expected a whole number of at least 2, got {size!r}")
    if not 0 <= margin < math.inf:
        raise ValueError(f"`margin`: expected a number of at least 0, got {margin!r}")
    model = models[0]
    origin = state_tensors(model)
    axes, where = _orthonormal(
        [difference(m, origin, f"models[{i}]") for i, m in enumerate(models[1:], start=1)],
        parameter_names(model),
    )
    scene = build_scene(
        model, data, loss, metrics, "**", None, samples=samples, seed=seed, bn=bn,
        batch_size=batch_size,
    )  # fmt: skip
    scene = replace(scene, moving=origin, axes=axes)
    alphas, betas = (frame(column, size, margin) for column in where.T)
    points = np.concatenate([[(a, b) for a in alphas for b in betas], where])
    scene = calibrate(scene, points)
    with running(
        scene,
        points,
        piece=size,
        checkpoint=checkpoint,
        executor=executor,
        settings={"verb": "plane"},
    ) as run:
        run.fill(np.arange(len(points)))
    on_plane = dict(zip(scene.values, run.table[:-3].T, strict=True))
    found = as_surface(
        on_plane, {"alpha": alphas, "beta": betas},
        attrs=describe(scene, "landscape.plane", margin=margin),
    )  # fmt: skip
    return found.assign(
        model_alpha=("model", where[:, 0], {"long_name": "position along alpha"}),
        model_beta=("model", where[:, 1], {"long_name": "position along beta"}),
        model_loss=("model", run.table[-3:, 0], {"long_name": "loss of the model itself"}),
    ).assign_coords(model=("model", np.arange(3), {"long_name": "model, in the order given"}))


def frame(positions: Array, size: int, margin: float) -> Array:
    """Coordinates of an axis that shows all positions, with room around them."""
    low, high = positions.min(), positions.max()
    room = margin * (high - low)
    return np.linspace(low - room, high + room, size)


def _orthonormal(steps: list[Params], names: list[str]) -> tuple[tuple[Params, Params], Array]:
    """Axes, and where the three models stand; lengths are those of parameters alone."""
    first, second = ({name: step[name] for name in names} for step in steps)
    length = math.sqrt(dot(first, first))
    along = dot(first, second) / length if length else 0.0
    above = math.sqrt(max(dot(second, second) - along**2, 0.0))
    if not length or above <= 1e-6 * length:
        raise ValueError("`models`: expected three models that are not on one line")
    alpha = combine([1 / length], steps[:1])
    beta = combine([-along / length / above, 1 / above], steps)
    return (alpha, beta), np.array([[0.0, 0.0], [length, 0.0], [along, above]])
