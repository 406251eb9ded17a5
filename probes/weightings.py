"""How much each exit's loss counts: one weight per layer, the last for the model's own output.

A weighting is any function `f(layers, step)` that returns one weight per layer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from probes.schedules import Schedule

__all__ = [
    "Weighting",
    "asymmetric",
    "asymmetric_l2",
    "auxiliary",
    "deep_supervision",
    "standard",
]

# Called as `weighting(layers, step)`: how many layers there are, and how many losses were made.
Weighting: TypeAlias = Callable[[int, int], Sequence[float]]


def standard(layers: int, step: int = 0) -> tuple[float, ...]:
    """The model's own loss only.

    Examples:
        >>> standard(3)
        (0.0, 0.0, 1.0)
    """
    return (*[0.0] * (layers - 1), 1.0)


def deep_supervision(layers: int, step: int = 0) -> tuple[float, ...]:
    """The same weight for all layers, with sum 1.

    Examples:
        >>> deep_supervision(4)
        (0.25, 0.25, 0.25, 0.25)
    """
    return (1.0 / layers,) * layers


def auxiliary(layers: int, step: int = 0) -> tuple[float, ...]:
    """Half the weight for the first layer, half for the last: `asymmetric(0.5)`.

    Examples:
        >>> auxiliary(3)
        (0.5, 0.0, 0.5)
    """
    return asymmetric(0.5)(layers, step)


def asymmetric(alpha: float | Schedule) -> "Asymmetric":
    """`alpha` for the first layer, `1 - alpha` for the last, 0 for the others.

    Args:
        alpha: A number from 0 to 1, or a schedule of such numbers; see `probes.schedules`.

    Examples:
        >>> asymmetric(0.75)(4, 0)
        (0.75, 0.0, 0.0, 0.25)
        >>> asymmetric(0.75)
        asymmetric(0.75)
    """
    return Asymmetric(alpha, 0.0)


def asymmetric_l2(alpha: float | Schedule) -> "Asymmetric":
    """`alpha` for the first layer, `1 - alpha` for the last, 1 for every layer between them.

    The name comes from models of three layers, where the layer between is the second.

    Args:
        alpha: A number from 0 to 1, or a schedule of such numbers; see `probes.schedules`.

    Examples:
        >>> asymmetric_l2(0.75)(3, 0)
        (0.75, 1.0, 0.25)
    """
    return Asymmetric(alpha, 1.0)


@dataclass(frozen=True)
class Asymmetric:  # a class, not a closure: it is pickled with the exits that use it
    """What `asymmetric` and `asymmetric_l2` make."""

    alpha: float | Schedule
    weight_between: float

    def __post_init__(self) -> None:
        # Tried once, so that an alpha out of range is refused before training.
        self._alpha_at(0)

    def __call__(self, layers: int, step: int) -> tuple[float, ...]:
        """One weight per layer."""
        if layers < 2:
            raise ValueError(f"`weights`: asymmetric weights need 2 layers or more, got {layers}")

        alpha = self._alpha_at(step)
        weights_between = [self.weight_between] * (layers - 2)
        return (alpha, *weights_between, 1.0 - alpha)

    def __repr__(self) -> str:
        name = "asymmetric_l2" if self.weight_between else "asymmetric"
        return f"{name}({self.alpha!r})"

    def _alpha_at(self, step: int) -> float:
        alpha = self.alpha(step) if callable(self.alpha) else self.alpha
        if not 0 <= alpha <= 1:
            raise ValueError(f"`alpha`: expected a number from 0 to 1, got {alpha!r}")
        return float(alpha)
