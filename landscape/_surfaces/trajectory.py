import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from landscape._directions.parameters import Params
from landscape._directions.states import (
    State,
    difference,
    parameter_names,
    read_state,
    state_tensors,
)
from landscape._directions.vectors import dot
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.point import Scene, standing
from landscape._evaluation.points import running
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.dataset import as_surface
from landscape._surfaces.plane import frame
from landscape._surfaces.principal_directions import principal_components
from resonance_toolkit import AtMost

Array = NDArray[np.float64]


def trajectory(
    model: nn.Module,
    checkpoints: Sequence[State],
    data: Any,
    *,
    steps: Sequence[int] | None = None,
    loss: Callable[..., Any] | None = None,
    samples: int | None = AtMost(500),
    size: int = 51,
    margin: float = 0.2,
    seed: int = 0,
    bn: str = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the plane that shows most of a training run.

    The plane goes through the last checkpoint along the first two principal components of all
    checkpoints (Li et al. 2018); its axes are orthonormal. A path seldom lies in a plane: its
    distance from it and the true loss of each checkpoint are given too, since the loss on the
    plane below a checkpoint is another one.

    Args:
        model: A model of the same architecture, to run; left as it was found.
        checkpoints: Three or more models or state dicts, in order.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        steps: Optimizer updates before each checkpoint; 0, 1, 2, ... by default.
        loss: As in `grid`.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        margin: Room around the path, relative to its extent.
        seed: Decides the samples.
        bn: As in `grid`; on the plane, frozen statistics are those of the last checkpoint.
        batch_size: As in `grid`.
        checkpoint: A file for finished points, as in `grid`.
        executor: As in `grid`.

    Returns:
        Dataset with `loss`, `loss_se`, `accuracy`, `evaluated` over `(alpha, beta)`; over `step`,
        `path_alpha`, `path_beta`, `path_distance` (from the plane) and `path_loss` (true loss);
        over `component`, `explained_variance`, the share of the variance of the checkpoints.

    Raises:
        ValueError: If there are fewer than three checkpoints, or they do not fit or do not move.

    Examples:
        >>> import torch
        >>> model, data = nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1))
        >>> path = [{"weight": torch.tensor([[4.0 - i, 0.0]])} for i in range(5)]
        >>> found = trajectory(model, path, data, loss=nn.functional.mse_loss, samples=2, size=3)
        >>> found["path_loss"].round(6).values, found["explained_variance"].round(6).values
        (array([8. , 4.5, 2. , 0.5, 0. ]), array([1., 0.]))
    """
    if not isinstance(checkpoints, Sequence) or len(checkpoints) < 3:
        raise ValueError("`checkpoints`: expected three or more models or state dicts, in order")
    labels = list(range(len(checkpoints))) if steps is None else [int(step) for step in steps]
    if len(labels) != len(checkpoints):
        raise ValueError(f"`steps`: expected {len(checkpoints)} of them, got {len(labels)}")
    if type(size) is not int or size < 2:
        raise ValueError(f"`size`: expected a whole number of at least 2, got {size!r}")
    if not 0 <= margin < math.inf:
        raise ValueError(f"`margin`: expected a number of at least 0, got {margin!r}")
    scene = build_scene(
        model, data, loss, None, "**", None, samples=samples, seed=seed, bn=bn,
        batch_size=batch_size,
    )  # fmt: skip
    tensors, names = state_tensors(model), parameter_names(model)
    last = read_state(checkpoints[-1], tensors, "checkpoints[-1]")
    components, explained = principal_components(checkpoints, {n: last[n] for n in names})
    path, distances = _project(checkpoints, {n: last[n] for n in names}, components)
    # The scene stands at the model's own weights: a third axis, at distance 1, goes to the last.
    to_last = {name: last[name] - tensors[name].detach() for name in tensors}
    still = {n: 0 * t.detach() for n, t in tensors.items() if n not in names}
    axes = (*({**component, **still} for component in components), to_last)
    scene = replace(scene, moving=tensors, axes=axes)
    alphas, betas = (
        _frame(column, size, margin, share) for column, share in zip(path.T, explained, strict=True)
    )
    points = np.array([(a, b, 1.0) for a in alphas for b in betas])
    scene = calibrate(scene, points)
    true = _true_losses(scene, checkpoints)
    with running(
        scene, points, piece=size, checkpoint=checkpoint, executor=executor,
        settings={"verb": "trajectory"},
    ) as run:  # fmt: skip
        run.fill(np.arange(len(points)))
    found = as_surface(
        dict(zip(scene.values, run.table.T, strict=True)), {"alpha": alphas, "beta": betas},
        attrs=describe(scene, "landscape.trajectory", margin=margin),
    )  # fmt: skip
    along = {
        "path_alpha": (path[:, 0], "position along the first component"),
        "path_beta": (path[:, 1], "position along the second component"),
        "path_distance": (distances, "distance from the plane"),
        "path_loss": (true, "true loss of the checkpoint"),
    }
    variance = {"long_name": "share of the variance explained"}
    return found.assign(
        {name: ("step", column, {"long_name": text}) for name, (column, text) in along.items()}
        | {"explained_variance": ("component", explained, variance)}
    ).assign_coords(
        step=("step", np.array(labels), {"long_name": "optimizer updates made"}),
        component=("component", np.arange(2), {"long_name": "principal component"}),
    )


def _project(
    checkpoints: Sequence[State], last: Params, components: tuple[Params, Params]
) -> tuple[Array, Array]:
    path, distances = [], []
    for i, state in enumerate(checkpoints):
        step = difference(state, last, f"checkpoints[{i}]")
        path.append([dot(step, component) for component in components])
        distances.append(math.sqrt(max(dot(step, step) - float(np.sum(np.square(path[-1]))), 0.0)))
    return np.array(path), np.array(distances)


def _frame(positions: Array, size: int, margin: float, share: float) -> Array:
    # A path on one line still needs a plane; beside the line it is at 0, but for round-off.
    around = positions if share else np.array([-1.0, 1.0])
    return frame(around, size, margin)


def _true_losses(scene: Scene, checkpoints: Sequence[State]) -> Array:
    losses = []
    for i, state in enumerate(checkpoints):
        to = difference(state, scene.moving, f"checkpoints[{i}]")
        # No first layer here: it would need new products for each checkpoint.
        with standing(replace(scene, axes=(to,), first_layer=None)) as at:
            losses.append(at([1.0])[0])
    return np.array(losses)
