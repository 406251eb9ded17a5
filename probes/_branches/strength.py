"""From the user's `alpha` to one strength per layer."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from probes.schedules import Adaptive, Schedule, constant
from resonance_toolkit import select

Alpha = float | Mapping[str, float | Schedule] | Schedule | Adaptive


def resolve_alpha(alpha: Any, layers: Sequence[str]) -> Adaptive | dict[str, Schedule]:
    """A schedule per layer, or the one adaptive rule for all of them; names go before patterns.

    Raises:
        ValueError: If a number is not finite or negative, or a mapping leaves out a layer.
        TypeError: If `alpha` is nothing of the kind.
    """
    if isinstance(alpha, Adaptive):
        return alpha
    if isinstance(alpha, Mapping):
        found: dict[str, Schedule] = {}
        for pattern, value in sorted(alpha.items(), key=lambda item: item[0] in layers):
            for name in select(layers, pattern, argument="alpha"):
                found[name] = _schedule(value)
        missing = [name for name in layers if name not in found]
        if missing:
            raise ValueError(f"`alpha`: expected a strength for every layer, none for {missing}")
        return {name: found[name] for name in layers}
    schedule = _schedule(alpha)
    return dict.fromkeys(layers, schedule)


def strength_at(schedule: Schedule, step: int) -> float:
    """The strength at a step, checked: a schedule is the user's code."""
    return _checked(schedule(step))


def _schedule(value: Any) -> Schedule:
    if callable(value):
        schedule: Callable[[int], float] = value
        strength_at(schedule, 0)
        return schedule
    return constant(_checked(value))


def _checked(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`alpha`: expected a number, mapping or schedule, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`alpha`: expected a finite number of at least 0, got {value!r}")
    return float(value)
