"""From the user's `weights` to one number per exit at a step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from probes import weightings
from probes.schedules import Schedule
from probes.weightings import Weighting

WeightingName = Literal["standard", "deep_supervision", "auxiliary"]
Weights = WeightingName | Sequence[float | Schedule] | Weighting

_WEIGHTINGS_BY_NAME: dict[str, Weighting] = {
    "standard": weightings.standard,
    "deep_supervision": weightings.deep_supervision,
    "auxiliary": weightings.auxiliary,
}


def resolve_weights(weights: Any, layers: Sequence[str]) -> Weighting:
    """Turn the user's `weights` into a weighting, and try it out at step 0.

    Raises:
        ValueError: If the weights are not one per layer, finite and at least 0, with one above 0.
        TypeError: If `weights` is nothing of the kind.
    """
    weighting: Weighting
    if isinstance(weights, str):
        if weights not in _WEIGHTINGS_BY_NAME:
            names = ", ".join(_WEIGHTINGS_BY_NAME)
            raise ValueError(
                f"`weights`: expected one of {names}, numbers or a weighting of "
                f"probes.weightings, got {weights!r}"
            )
        weighting = _WEIGHTINGS_BY_NAME[weights]
    elif callable(weights):
        weighting = weights
    elif isinstance(weights, Sequence):
        weighting = _FixedWeights(tuple(weights))
    else:
        raise TypeError(
            f"`weights`: expected numbers, a name or a weighting, got {type(weights).__name__}"
        )

    weights_at(weighting, layers, 0)
    return weighting


def weights_at(weighting: Weighting, layers: Sequence[str], step: int) -> tuple[float, ...]:
    """Return the weights at a step, checked: a weighting may be the user's code."""
    values = tuple(weighting(len(layers), step))

    if len(values) != len(layers):
        raise ValueError(
            f"`weights`: expected one for each of {', '.join(layers)}, got {len(values)}"
        )
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"`weights`: expected numbers or schedules, got {value!r}")
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"`weights`: expected finite numbers of at least 0, got {value!r}")
    if not any(values):
        raise ValueError(f"`weights`: expected one above 0 at least, got {values} at step {step}")

    return tuple(float(value) for value in values)


@dataclass(frozen=True)
class _FixedWeights:
    """One number or schedule for each layer, as the user listed them."""

    values: tuple[float | Schedule, ...]

    def __call__(self, layers: int, step: int) -> tuple[float, ...]:
        return tuple(value(step) if callable(value) else value for value in self.values)
