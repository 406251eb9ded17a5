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
from landscape._directions.principal_components import principal_components
from landscape._directions.states import (
    State,
    difference,
    parameter_names,
    read_state,
    state_tensors,
)
from landscape._directions.vectors import dot
from landscape._evaluation.point import point_evaluator
from landscape._evaluation.points import Evaluation, evaluate
from landscape._evaluation.problem import BatchNormStatistics, Problem, Request, make_problem
from landscape._surfaces.dataset import as_surface, attributes_of
from landscape._surfaces.layout import frame
from resonance_toolkit import AtMost, check_module, check_not_negative, check_whole

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
    bn: BatchNormStatistics = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the plane that shows most of a training run.

    The plane goes through the last checkpoint along the first two principal components of all
    checkpoints (Li et al. 2018); its axes are orthonormal. A training run is rarely confined to a
    plane, so the loss on the plane differs from that of the checkpoint above it. The result
    therefore also has the distance of each checkpoint from the plane, and its true loss.

    Args:
        model: A model of the same architecture, to run; left as it was found.
        checkpoints: Three or more models or state dicts, in order.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        steps: Optimizer updates before each checkpoint; 0, 1, 2, ... by default.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default the loss that the targets ask for, such as cross-entropy.
        samples: How many samples to draw, at most; None takes all.
        size: Points along alpha and beta.
        margin: Room around the path, relative to its extent.
        seed: Determines which samples are drawn.
        bn: `"frozen"` running statistics, on the plane those of the last checkpoint, or
            `"recompute"` them at every point.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        checkpoint: A file for finished points. After a kill, the same call continues from it.
        executor: A `concurrent.futures.Executor` that evaluates pieces; by default this process
            does.

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
        >>> run = trajectory(model, path, data, loss=nn.functional.mse_loss, samples=2, size=3)
        >>> run["path_loss"].round(4).values, run["explained_variance"].round(4).values
        (array([8. , 4.5, 2. , 0.5, 0. ]), array([1., 0.]))
    """
    if not isinstance(checkpoints, Sequence) or len(checkpoints) < 3:
        raise ValueError("`checkpoints`: expected three or more models or state dicts, in order")
    labels = list(range(len(checkpoints))) if steps is None else [int(step) for step in steps]
    if len(labels) != len(checkpoints):
        raise ValueError(f"`steps`: expected {len(checkpoints)} of them, got {len(labels)}")
    size = check_whole("size", size, at_least=2)
    check_not_negative("margin", margin)
    check_module(model)

    tensors = state_tensors(model)
    last = read_state(checkpoints[-1], tensors, "checkpoints[-1]")
    last_parameters = {name: last[name] for name in parameter_names(model)}
    components, explained = principal_components(checkpoints, last_parameters)
    path, distances = _project(checkpoints, last_parameters, components)

    # Points are counted from the model's own weights, while the plane goes through the last
    # checkpoint. So a third axis leads there, always at distance 1:
    # weights + alpha * first + beta * second + 1 * (last - weights).
    to_last = {name: last[name] - tensor.detach() for name, tensor in tensors.items()}
    first, second = (_without_motion_of_buffers(c, tensors) for c in components)
    alphas, betas = (
        _frame_path(column, size, margin, share)
        for column, share in zip(path.T, explained, strict=True)
    )
    points = np.array([(alpha, beta, 1.0) for alpha in alphas for beta in betas])

    request = Request(data, loss=loss, samples=samples, seed=seed, bn=bn, batch_size=batch_size)
    axes = (first, second, to_last)
    problem = make_problem(model, request, tensors, axes, {"verb": "trajectory"})
    evaluation = evaluate(
        problem, points, points_per_piece=size, checkpoint=checkpoint, executor=executor
    )

    surface = as_surface(
        evaluation.values,
        {"alpha": alphas, "beta": betas},
        attributes=attributes_of(evaluation, "landscape.trajectory", margin=margin),
    )
    along_path = {
        "path_alpha": (path[:, 0], "position along the first component"),
        "path_beta": (path[:, 1], "position along the second component"),
        "path_distance": (distances, "distance from the plane"),
        "path_loss": (_true_losses(evaluation, checkpoints), "true loss of the checkpoint"),
    }
    variables: dict[str, Any] = {
        name: ("step", column, {"long_name": long_name})
        for name, (column, long_name) in along_path.items()
    }
    variables["explained_variance"] = (
        "component",
        explained,
        {"long_name": "share of the variance explained"},
    )
    return surface.assign(variables).assign_coords(
        step=("step", np.array(labels), {"long_name": "optimizer updates made"}),
        component=("component", np.arange(2), {"long_name": "principal component"}),
    )


def _project(
    checkpoints: Sequence[State], last: Params, components: tuple[Params, Params]
) -> tuple[Array, Array]:
    """Where the checkpoints are on the plane, and how far they are from it."""
    path = []
    distances = []
    for i, state in enumerate(checkpoints):
        step = difference(state, last, f"checkpoints[{i}]")
        position = [dot(step, component) for component in components]
        path.append(position)

        squared_distance = dot(step, step) - float(np.sum(np.square(position)))
        distances.append(math.sqrt(max(squared_distance, 0.0)))
    return np.array(path), np.array(distances)


def _without_motion_of_buffers(component: Params, tensors: Params) -> Params:
    """A component of the parameters, with zeros for what else there is."""
    zeros = {name: 0 * t.detach() for name, t in tensors.items() if name not in component}
    return component | zeros


def _frame_path(positions: Array, size: int, margin: float, share: float) -> Array:
    # A path on one line still needs a plane; beside the line it is at 0, but for round-off.
    return frame(positions if share else np.array([-1.0, 1.0]), size, margin)


def _true_losses(evaluation: Evaluation, checkpoints: Sequence[State]) -> Array:
    problem = evaluation.problem

    # Without a first layer: it would need new products for each checkpoint.
    plan = replace(evaluation.plan, first_layer=None)

    losses = []
    for i, state in enumerate(checkpoints):
        step = difference(state, problem.tensors, f"checkpoints[{i}]")
        checkpoint_problem = Problem(problem.measurement, problem.tensors, (step,))
        with point_evaluator(checkpoint_problem, plan) as evaluate_point:
            losses.append(evaluate_point([1.0])[0])
    return np.array(losses)
