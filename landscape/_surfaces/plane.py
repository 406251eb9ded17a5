import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from landscape._directions.parameters import Params
from landscape._directions.states import State, combine, difference, parameter_names, state_tensors
from landscape._directions.vectors import dot
from landscape._evaluation.points import evaluate
from landscape._evaluation.problem import BatchNormStatistics, Request, make_problem
from landscape._surfaces.dataset import as_surface, attributes_of
from landscape._surfaces.layout import frame
from resonance_toolkit import AtMost, check_not_negative, check_whole

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
    bn: BatchNormStatistics = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on the plane through three models.

    The axes are orthonormal, so that distances and angles in a picture are those in parameter
    space. The first model is at (0, 0), the second on the alpha axis, and the third above it.

    Args:
        models: Three models or state dicts. The first must be a module: it runs at every point,
            and is left as it was found. All parameters and running statistics move (variances stay
            at or above 0).
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default the loss that the targets ask for, such as cross-entropy.
        metrics: Further values to compute, by name: callables like `loss`, callables of `(model)`
            alone, or loss-landscapes metrics.
        samples: How many samples to draw, at most; None takes all.
        size: Points along alpha and beta.
        margin: Room around the three models, relative to their extent.
        seed: Determines which samples are drawn.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        checkpoint: A file for finished points. After a kill, the same call continues from it.
        executor: A `concurrent.futures.Executor` that evaluates pieces; by default this process
            does.

    Returns:
        Dataset with `loss`, `loss_se`, `accuracy`, `evaluated` and metrics over `(alpha, beta)`.
        Over `model` (0, 1, 2), it has their positions `model_alpha` and `model_beta`, and their own
        loss `model_loss`.

    Raises:
        ValueError: If the models are on one line, or do not fit each other.

    Examples:
        >>> import torch
        >>> origin, x = nn.Linear(2, 1, bias=False), torch.eye(2)
        >>> _ = nn.init.zeros_(origin.weight)
        >>> others = [{"weight": torch.tensor([[3.0, 0]])}, {"weight": torch.tensor([[1.0, 4]])}]
        >>> models = [origin, *others]
        >>> surface = plane(models, (x, x), loss=lambda o, y: o.mean(), samples=2, size=2)
        >>> surface["model_alpha"].values, surface["model_beta"].values
        (array([0., 3., 1.]), array([0., 0., 4.]))
    """
    if not isinstance(models, Sequence) or len(models) != 3 or not isinstance(models[0], nn.Module):
        raise ValueError("`models`: expected three models or state dicts, the first a module")
    size = check_whole("size", size, at_least=2)
    check_not_negative("margin", margin)

    model = models[0]
    origin = state_tensors(model)
    steps = [difference(m, origin, f"models[{i}]") for i, m in enumerate(models[1:], start=1)]
    axes, positions = _orthonormal_axes(steps, parameter_names(model))

    # The three models themselves are evaluated too, as the last three points.
    alphas, betas = (frame(column, size, margin) for column in positions.T)
    on_plane = [(alpha, beta) for alpha in alphas for beta in betas]
    points = np.concatenate([on_plane, positions])

    request = Request(
        data, loss=loss, metrics=metrics, samples=samples, seed=seed, bn=bn, batch_size=batch_size
    )
    problem = make_problem(model, request, origin, axes, {"verb": "plane"})
    evaluation = evaluate(
        problem, points, points_per_piece=size, checkpoint=checkpoint, executor=executor
    )

    surface = as_surface(
        {name: column[:-3] for name, column in evaluation.values.items()},
        {"alpha": alphas, "beta": betas},
        attributes=attributes_of(evaluation, "landscape.plane", margin=margin),
    )
    model_losses = evaluation.values["loss"][-3:]
    return surface.assign(
        model_alpha=("model", positions[:, 0], {"long_name": "position along alpha"}),
        model_beta=("model", positions[:, 1], {"long_name": "position along beta"}),
        model_loss=("model", model_losses, {"long_name": "loss of the model itself"}),
    ).assign_coords(model=("model", np.arange(3), {"long_name": "model, in the order given"}))


def _orthonormal_axes(steps: list[Params], names: list[str]) -> tuple[tuple[Params, Params], Array]:
    """Axes, and where the three models stand; lengths are those of parameters alone."""
    first, second = ({name: step[name] for name in names} for step in steps)

    # The second step, split along the first one and at a right angle to it.
    length = math.sqrt(dot(first, first))
    along = dot(first, second) / length if length else 0.0
    above = math.sqrt(max(dot(second, second) - along**2, 0.0))
    if not length or above <= 1e-6 * length:
        raise ValueError("`models`: expected three models that are not on one line")

    alpha = combine([1 / length], steps[:1])
    beta = combine([-along / length / above, 1 / above], steps)
    return (alpha, beta), np.array([[0.0, 0.0], [length, 0.0], [along, above]])
