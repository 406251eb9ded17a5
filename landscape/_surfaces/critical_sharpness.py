import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from landscape._curvature.matrix import gradient
from landscape._curvature.setup import covered_parameters, matrix_of
from landscape._directions.parameters import Params
from landscape._directions.vectors import dot, read_direction
from landscape._evaluation.critical_step import Bracket, find_critical_step
from landscape._evaluation.point import Plan, point_evaluator
from landscape._evaluation.problem import (
    Measurement,
    Problem,
    Request,
    describe,
    make_measurement,
)
from resonance_toolkit import (
    AtMost,
    check_module,
    check_positive,
    check_whole,
    provenance,
)

_LONG_NAMES = {
    "critical_sharpness": "critical sharpness, 2 over the critical step",
    "critical_step": "smallest step at which the loss is no lower than before it",
    "lower_step": "largest step known to lower the loss",
    "upper_step": "smallest step known not to lower the loss",
    "slope": "slope of the loss along the direction",
    "n_evaluations": "evaluations of the loss",
}

# Roundings of the loss below which its changes tell nothing.
_ROUNDINGS_ALLOWED = 8


def critical_sharpness(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Any] | None = None,
    losses: Mapping[str, Callable[..., Any]] | None = None,
    direction: Literal["gradient"] | Mapping[str, Tensor] = "gradient",
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    seed: int = 0,
    tolerance: float = 0.05,
    max_evaluations: int = 8,
    batch_size: int | None = None,
) -> xr.Dataset:
    """Measure how sharp a loss is along an update.

    The critical step `t` is the smallest step at which the loss at `weights + t * direction` is no
    lower than at the weights. The critical sharpness is `2 / t` (arXiv 2601.16979). For a quadratic
    loss and the direction `-gradient`, it is `g' H g / g' g`, which is at most the largest
    eigenvalue: gradient descent with a learning rate above `t` raises the loss. Measuring it takes
    a few forward passes.

    With several `losses`, each one's update is followed in turn, and all losses are evaluated along
    it. The *relative* critical sharpness of a pair says how large a step for one loss may be before
    the other loss rises. If the other loss rises at once, because its gradient points the other
    way, the critical step is 0 and the sharpness infinite.

    Args:
        model: Any module, called in eval mode; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        loss: `(outputs, targets)` or `(model, x, y)`; by default the loss that the
            targets ask for, such as cross-entropy.
        losses: Several such losses by name, instead of `loss`. For a probe's loss, pass a function
            of `(model, x, y)` that calls the model while the probe is listening.
        direction: `"gradient"` goes down the gradient of each objective. Or an update: tensors by
            parameter name, such as new weights minus old ones. Parameters that it leaves out do
            not move.
        over: Names or patterns of the parameters that the gradient is taken for; all trained ones
            by default.
        samples: How many samples to draw, at most; None takes all.
        seed: Determines which samples are drawn.
        tolerance: Width of the bracket around the critical step, relative to it.
        max_evaluations: Largest number of steps to try for each pair of objectives, not counting
            the loss at the weights themselves.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.

    Returns:
        Dataset over `(objective, other_objective)`: the update of the first is followed, and the
        loss of the second is evaluated. It has `critical_sharpness`, `critical_step`, the bracket
        `lower_step` and `upper_step`, the `slope` of the loss along the direction, and
        `n_evaluations`. Values are NaN if the loss did not rise at any step tried, or if its
        changes are no larger than rounding errors.

    Raises:
        ValueError: If an argument does not fit.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> _ = nn.init.ones_(model.weight)
        >>> scale = torch.tensor([[2.0], [1.0]])
        >>> square = lambda model, x, y: (model.weight.T * scale).square().sum()  # H: diag(8, 2)
        >>> x = torch.ones(1, 2)
        >>> measured = critical_sharpness(model, (x, x), loss=square)
        >>> round(measured["critical_sharpness"].item(), 3)  # g = (8, 2): g'Hg / g'g = 520 / 68
        7.647
    """
    check_module(model)
    tolerance = check_positive("tolerance", tolerance)
    max_evaluations = check_whole("max_evaluations", max_evaluations, at_least=3)
    objectives = _name_losses(loss, losses)

    measurements = {
        name: make_measurement(
            model,
            Request(data, loss=function, samples=samples, seed=seed, batch_size=batch_size),
        )
        for name, function in objectives.items()
    }
    if isinstance(direction, str):
        params = covered_parameters(model, over)
    else:
        params = _params_along(model, direction, over)

    gradients = {
        name: gradient(matrix_of(measurement, params, "hessian", memory=0.0))
        for name, measurement in measurements.items()
    }
    updates = _make_updates(direction, gradients, params)

    effort = _Effort(tolerance, max_evaluations)
    shape = len(updates), len(objectives)
    columns = {name: np.full(shape, np.nan) for name in _LONG_NAMES}
    for row, update in enumerate(updates.values()):
        for column, (name, measurement) in enumerate(measurements.items()):
            values = _measure_along(measurement, params, update, gradients[name], effort)
            for key, value in values.items():
                columns[key][row, column] = value

    if not np.isfinite(columns["slope"]).all():
        warnings.warn(
            "the slope of the loss is not finite at the weights, so that the sharpness is NaN: "
            "`data` or weights may hold NaN or infinity",
            stacklevel=2,
        )

    dims = "objective", "other_objective"

    # All losses are measured on the same samples: what holds for one problem holds for each.
    any_problem = Problem(next(iter(measurements.values())), params, ())
    attributes = describe(any_problem, draws_random_numbers=False) | {
        "loss": ", ".join(m.objective.loss_name for m in measurements.values()),
        "direction": direction if isinstance(direction, str) else "given",
        "tolerance": tolerance,
        "max_evaluations": max_evaluations,
    }
    return xr.Dataset(
        {name: (dims, columns[name], {"long_name": _LONG_NAMES[name]}) for name in _LONG_NAMES},
        coords={
            "objective": ("objective", list(updates), {"long_name": "update that is followed"}),
            "other_objective": (
                "other_objective",
                list(objectives),
                {"long_name": "loss that is looked at"},
            ),
        },
        attrs=provenance("landscape.critical_sharpness", model, **attributes),
    )


@dataclass(frozen=True)
class _Effort:
    tolerance: float
    max_evaluations: int


def _name_losses(loss: Any, losses: Mapping[str, Any] | None) -> dict[str, Any]:
    """The losses by name, of which a single one is called `loss`."""
    if losses is None:
        return {"loss": loss}

    if loss is not None:
        raise ValueError("`losses`: expected either `loss` or `losses`, got both")
    if not isinstance(losses, Mapping):
        raise TypeError(
            f"`losses`: expected a mapping of names to losses, got {type(losses).__name__}"
        )
    if not losses or not all(isinstance(name, str) for name in losses):
        raise ValueError(f"`losses`: expected at least one, each with a name, got {list(losses)}")
    return dict(losses)


def _params_along(model: nn.Module, direction: Any, over: str | Sequence[str] | None) -> Params:
    """The parameters that an update of the user's moves."""
    if not isinstance(direction, Mapping):
        raise TypeError(
            "`direction`: expected 'gradient' or a mapping of tensors by parameter name, got "
            f"{type(direction).__name__}"
        )
    if over is not None:
        raise ValueError(
            "`over`: expected None with an update as `direction`, which moves the parameters that "
            "it has tensors for"
        )
    if not direction:
        raise ValueError("`direction`: expected tensors by parameter name, got none")
    return covered_parameters(model, list(direction), argument="direction")


def _make_updates(
    direction: Literal["gradient"] | Mapping[str, Tensor],
    gradients: Mapping[str, Params],
    params: Params,
) -> dict[str, Params]:
    """The updates that are followed, by the objective that they serve."""
    if not isinstance(direction, str):
        return {"given": read_direction(direction, params, copy=True, argument="direction")}

    if direction != "gradient":
        raise ValueError(
            f"`direction`: expected 'gradient' or tensors by parameter name, got {direction!r}"
        )
    return {
        name: {key: -slope for key, slope in slopes.items()} for name, slopes in gradients.items()
    }


def _measure_along(
    measurement: Measurement, params: Params, update: Params, slopes: Params, effort: _Effort
) -> dict[str, float]:
    """Find the critical step of one loss along one update."""
    problem = Problem(measurement, params, (update,))
    slope = dot(update, slopes)

    # Models that draw random numbers draw the same at every step.
    with point_evaluator(problem, Plan(reseed=True)) as evaluate_point:
        loss_here = evaluate_point((0.0,))[0]

        # The linear model of the loss reaches 0 there. A loss of 0 has no scale of its own.
        first_step = abs(loss_here / slope) if slope and loss_here else 1.0
        bracket = find_critical_step(
            lambda step: evaluate_point((step,))[0] - loss_here,
            slope=slope,
            first_step=first_step,
            tolerance=effort.tolerance,
            max_evaluations=effort.max_evaluations,
        )

    is_seen = _is_seen(bracket, loss_here, params)
    step = bracket.step if is_seen else np.nan
    return {
        "critical_sharpness": 2 / step if step else np.inf,
        "critical_step": step,
        "lower_step": bracket.lower,
        "upper_step": bracket.upper,
        "slope": slope,
        "n_evaluations": bracket.n_evaluations + 1,
    }


def _is_seen(bracket: Bracket, loss_here: float, params: Params) -> bool:
    """Tell whether the loss changed by more than its rounding, if it had to be looked at."""
    if not bracket.n_evaluations:
        return bool(bracket.upper_rate > 0)

    rounding = max(torch.finfo(p.dtype).eps for p in params.values()) * abs(loss_here)
    return bracket.largest_change > _ROUNDINGS_ALLOWED * rounding
