from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from landscape._directions.parameters import Params
from landscape._directions.states import State, difference, parameter_names, state_tensors
from landscape._evaluation.points import evaluate
from landscape._evaluation.problem import BatchNormStatistics, Request, make_problem
from landscape._surfaces.dataset import as_surface, attributes_of
from landscape._surfaces.layout import BARRIER_ATTRIBUTES, barrier
from resonance_toolkit import AtMost, check_module, check_whole


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
    bn: BatchNormStatistics = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the Bezier curve from one model to another.

    The curve is `(1 - t)^2 a + 2 t (1 - t) c + t^2 b`, from model `a` to model `b` by way of the
    control point `c` (Garipov et al. 2018).

    Args:
        model: The beginning; left as it was found.
        to: The end, a model or state dict.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        control: The control point, from `bend`.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default the loss that the targets ask for, such as cross-entropy.
        metrics: Further values to compute, by name: callables like `loss`, callables of `(model)`
            alone, or loss-landscapes metrics.
        samples: How many samples to draw, at most; None takes all.
        size: Points along the curve, both ends included.
        seed: Determines which samples are drawn.
        bn: `"frozen"` running statistics, which go straight from one model's to the other's, or
            `"recompute"` them at every point.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        checkpoint: A file for finished points. After a kill, the same call continues from it.
        executor: A `concurrent.futures.Executor` that evaluates pieces; by default this process
            does.

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
    size = check_whole("size", size, at_least=2)
    check_module(model)
    origin = state_tensors(model)
    axes = _curve_axes(to, control, origin, parameter_names(model))

    # From `a`, with steps to `c` and to `b`: a + 2 t (1 - t) (c - a) + t^2 (b - a).
    t = np.arange(size) / (size - 1)
    points = np.stack([2 * t * (1 - t), t**2], axis=1)

    request = Request(
        data, loss=loss, metrics=metrics, samples=samples, seed=seed, bn=bn, batch_size=batch_size
    )
    problem = make_problem(model, request, origin, axes, {"verb": "curve"})
    evaluation = evaluate(
        problem, points, points_per_piece=10, checkpoint=checkpoint, executor=executor
    )

    surface = as_surface(
        evaluation.values,
        {"alpha": t},
        attributes=attributes_of(evaluation, "landscape.curve"),
    )
    surface["alpha"].attrs["long_name"] = "position on the curve"
    height = barrier(t, evaluation.values["loss"])
    return surface.assign(barrier=((), height, BARRIER_ATTRIBUTES))


def _curve_axes(
    to: State, control: Mapping[str, Tensor], origin: Params, names: list[str]
) -> tuple[Params, Params]:
    """Steps from the first model to the control point and to the last model."""
    to_end = difference(to, origin, "to")

    controlled = {name: tensor for name, tensor in origin.items() if name in control}
    missing = [name for name in names if name not in controlled]
    if missing:
        raise ValueError(f"`control`: expected every parameter, {', '.join(missing)} missing")

    # Buffers have no control point: half way makes them go straight.
    half_way = {name: step / 2 for name, step in to_end.items()}
    to_control = half_way | difference(control, controlled, "control")
    return to_control, to_end
