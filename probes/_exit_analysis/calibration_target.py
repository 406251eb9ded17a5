"""What a calibrated threshold is to reach, and what is then proved, in words."""

import math
from dataclasses import dataclass
from typing import Literal

TargetName = Literal["exit_rate", "agreement", "increase"]


@dataclass(frozen=True)
class CalibrationTarget:
    """One target of `calibrate_exits`, and the chance allowed that its guarantee fails."""

    name: TargetName
    value: float
    delta: float

    def guarantee(self, n_samples: int, *, one_token_per_sample: bool) -> str:
        """Say what holds for the threshold chosen, and by which theorem."""
        chance = (
            f"with probability at least {1 - self.delta:g} over {n_samples} independent "
            "calibration samples"
        )

        match self.name:
            case "exit_rate":
                theorem = "Dvoretzky-Kiefer-Wolfowitz"
                if not one_token_per_sample:
                    theorem += ", McDiarmid"
                return (
                    f"{chance}, the exit rate to expect is within rate_bound of exit_rate "
                    f"({theorem})"
                )
            case "agreement":
                theorem = "exact binomial" if one_token_per_sample else "Hoeffding-Bentkus"
                return (
                    f"{chance}, the agreement to expect is at least {self.value:g} (fixed-sequence "
                    f"testing, {theorem}; finite-sample)"
                )
            case "increase":
                return (
                    f"{chance}, the perplexity to expect is at most {1 + self.value:g} times the "
                    "whole model's (fixed-sequence testing, Student's t; for many samples, not a "
                    "finite-sample bound)"
                )


def check_target(
    exit_rate: float | None, agreement: float | None, increase: float | None, delta: float
) -> CalibrationTarget:
    """Return the one target that is given.

    Raises:
        ValueError: If there is none or more than one, or a number does not fit.
    """
    options: dict[TargetName, float | None] = {
        "exit_rate": exit_rate,
        "agreement": agreement,
        "increase": increase,
    }
    targets = {name: value for name, value in options.items() if value is not None}
    if len(targets) != 1:
        raise ValueError(
            f"expected one target of `exit_rate`, `agreement` and `increase`, got {len(targets)}"
        )

    ((name, value),) = targets.items()
    # No increase at all may be asked for, and any; a share of 0 would ask for nothing.
    if name == "increase":
        is_allowed = value >= 0
        expected = "at least 0"
    else:
        is_allowed = 0 < value <= 1
        expected = "above 0, at most 1"
    if not (is_allowed and math.isfinite(value)):
        raise ValueError(f"`{name}`: expected a finite number, {expected}, got {value!r}")

    if not 0 < delta < 1:
        raise ValueError(f"`delta`: expected a number between 0 and 1, got {delta!r}")
    return CalibrationTarget(name, float(value), delta)
