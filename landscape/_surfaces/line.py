import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import xarray as xr
from torch import Tensor, nn

from landscape._directions.parameters import Extra
from landscape._directions.states import State, difference, parameter_names, state_tensors
from landscape._directions.vectors import Normalisation, norm
from landscape._evaluation.points import evaluate
from landscape._evaluation.problem import BatchNormStatistics, Problem, Request, make_problem
from landscape._surfaces.axes import (
    DirectionName,
    choose_directions,
    either_spelling,
    make_problem_along,
)
from landscape._surfaces.dataset import as_surface, attributes_of
from landscape._surfaces.layout import BARRIER_ATTRIBUTES, barrier, line_coordinates
from resonance_toolkit import AtMost, check_module


def line(
    model: nn.Module,
    data: Any,
    *,
    to: State | None = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    direction: DirectionName | Mapping[str, Tensor] = "random",
    normalisation: Normalisation | None = None,
    normalization: Normalisation | None = None,
    over: str | Sequence[str] | None = None,
    extra: Extra | None = None,
    samples: int | None = AtMost(500),
    size: int = 51,
    span: tuple[float, float] | None = None,
    seed: int = 0,
    bn: BatchNormStatistics = "frozen",
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Evaluate the loss on a line: to another model, or along a direction.

    Args:
        model: Any module; left as it was found. It is at alpha = 0.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        to: A model or state dict, at alpha = 1. All parameters and the running statistics of batch
            norms then move (variances stay at or above 0), so that the loss at each end is that of
            the model there.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default the loss that the targets ask for, such as cross-entropy.
        metrics: Further values to compute, by name: callables like `loss`, callables of `(model)`
            alone, or loss-landscapes metrics.
        direction: Without `to`: `"random"`, `"gradient"`, `"hessian"` (the eigenvector of the
            largest eigenvalue), or a mapping of tensors by parameter name.
        normalisation: `"filter"` (each filter to the norm of its weights), `"layer"` (each tensor
            to the norm of its weights), `"tensor"` (every tensor to the same norm, and the whole
            direction to norm 1), `"unit"` (the whole direction to norm 1) or `"none"`;
            by default `"filter"` for a random direction, `"none"` for one that you pass, else
            `"unit"`. Not with `to`.
        normalization: Another spelling of `normalisation`.
        over: Names or patterns of the parameters that move; by default trained weights of two or
            more dimensions. Not with `to`, which moves everything.
        extra: A module or mapping of tensors that the direction covers as well; see `grid`. Not
            with `to`.
        samples: How many samples to draw, at most; None takes all.
        size: Number of points along the line. The points alpha = 0 and 1 are added if they are
            missing.
        span: First and last alpha; (0, 1) with `to`, else (-1, 1).
        seed: Determines samples and direction.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        checkpoint: A file for finished points. After a kill, the same call continues from it.
        executor: A `concurrent.futures.Executor` that evaluates pieces; by default this process
            does.

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
        >>> between = line(here, data, to=there, loss=apart, samples=2, size=5)
        >>> between["loss"].values, between["barrier"].item()
        (array([0.    , 0.5625, 1.    , 0.5625, 0.    ]), 1.0)
    """
    default_span = (0.0, 1.0) if to is not None else (-1.0, 1.0)
    alphas = line_coordinates(size, span or default_span, has_end=to is not None)
    normalisation = either_spelling(normalisation, normalization)
    if to is not None and (over, extra, normalisation, direction) != (None, None, None, "random"):
        raise ValueError("`to`: cannot be combined with direction, normalisation, over or extra")
    if not isinstance(direction, str | Mapping):
        raise TypeError(
            f"`direction`: expected a name or a mapping, got {type(direction).__name__}"
        )

    request = Request(
        data, loss=loss, metrics=metrics, samples=samples, seed=seed, bn=bn, batch_size=batch_size
    )
    if to is None:
        choice = choose_directions(direction, normalisation, over=over, extra=extra, count=1)
        settings = {"directions": choice.name, "normalisation": choice.normalisation}
        problem = make_problem_along(model, request, choice, settings=settings)
        length = norm(problem.axes[0])
    else:
        problem = _make_problem_towards(to, model, request)
        (step,) = problem.axes

        # Running statistics go along, but a distance is one between parameters.
        length = norm({name: step[name] for name in parameter_names(model)})

    evaluation = evaluate(
        problem,
        alphas[:, None],
        points_per_piece=10,
        checkpoint=checkpoint,
        executor=executor,
    )

    attributes = attributes_of(evaluation, "landscape.line", over=over, **problem.settings)
    attributes["length_alpha"] = length
    surface = as_surface(evaluation.values, {"alpha": alphas}, attributes=attributes)

    height = barrier(alphas, evaluation.values["loss"]) if to is not None else math.nan
    return surface.assign(barrier=((), height, BARRIER_ATTRIBUTES))


def _make_problem_towards(to: State, model: nn.Module, request: Request) -> Problem:
    check_module(model)
    origin = state_tensors(model)
    step = difference(to, origin, "to")
    settings = {"directions": "to", "normalisation": "none"}
    return make_problem(model, request, origin, (step,), settings)
