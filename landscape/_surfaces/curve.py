from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from landscape._directions.states import State, difference, parameter_names, state_tensors
from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.points import running
from landscape._evaluation.problem import build_scene, describe
from landscape._surfaces.dataset import as_surface
from landscape._surfaces.line import barrier
from resonance_toolkit import AtMost


def curve(
    model: nn.Module,
    to: State,
    data: Any,
    control: Mapping[str, Tensor],
    *,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    samples: int | None = AtMost(500),
    size: int = 51,
    seed: int = 0,
    bn: str = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the Bezier curve from one model to another.

    Args:
        model: The beginning; called as `model(inputs)` and left as it was found.
        to: The end, a model or state dict.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        control: The control point, from `bend`.
        loss: As in `grid`.
        metrics: As in `grid`.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along the curve, both ends included.
        seed: Decides the samples.
        bn: As in `grid`; frozen statistics go straight from one model's to the other's.
        batch_size: As in `grid`.
        checkpoint: As in `grid`.
        executor: As in `grid`.

    Returns:
        Dataset with `loss`, `loss_se`, `accuracy`, `evaluated` and metrics over `alpha`, the
        position on the curve from 0 to 1, and `barrier` as in `line`.

    Raises:
        ValueError: If `to` or `control` does not fit the model.

    Examples:
        >>> import torch
        >>> here, there = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(here.weight), nn.init.zeros_(there.weight)
        >>> data = torch.ones(2, 1), torch.zeros(2, 1)
        >>> away = {"weight": torch.ones(1, 1)}
        >>> curve(here, there, data, away, loss=nn.functional.mse_loss, samples=2, size=3)[
        ...     "loss"].values
        array([0.  , 0.25, 0.  ])
    """
    if type(size) is not int or size < 2:
        raise ValueError(f"`size`: expected a whole number of at least 2, got {size!r}")
    scene = build_scene(
        model, data, loss, metrics, "**", None, samples=samples, seed=seed, bn=bn,
        batch_size=batch_size,
    )  # fmt: skip
    origin = state_tensors(model)
    end = difference(to, origin, "to")
    own = {name: tensor for name, tensor in origin.items() if name in control}
    missing = [name for name in parameter_names(model) if name not in own]
    if missing:
        raise ValueError(f"`control`: expected every parameter, {', '.join(missing)} missing")
    # Buffers have no control point: half way makes them go straight.
    bent = {name: step / 2 for name, step in end.items()} | difference(control, own, "control")
    t = np.arange(size) / (size - 1)
    points = np.stack([2 * t * (1 - t), t**2], axis=1)
    scene = calibrate(replace(scene, moving=origin, axes=(bent, end)), points)
    with running(
        scene,
        points,
        piece=10,
        checkpoint=checkpoint,
        executor=executor,
        settings={"verb": "curve"},
    ) as run:
        run.fill(np.arange(size))
    values = dict(zip(scene.values, run.table.T, strict=True))
    found = as_surface(values, {"alpha": t}, attrs=describe(scene, "landscape.curve"))
    found["alpha"].attrs["long_name"] = "position on the curve"
    note = {"long_name": "rise of the loss above both ends"}
    return found.assign(barrier=((), barrier(t, values["loss"]), note))
