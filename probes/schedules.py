"""Strengths of the auxiliary signal: by step, or adapted to the main gradient.

Any function `f(step) -> float` is a schedule; those here can be pickled with the probe that uses
them, and print as they were written. An adaptive rule is any object with a method `weigh`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from resonance_toolkit import check_not_negative

__all__ = ["Adaptive", "Schedule", "balance", "constant", "cosine", "gate", "linear", "step"]

# Called as `schedule(step)`, with the number of losses made so far.
Schedule: TypeAlias = Callable[[int], float]


def constant(alpha: float) -> Schedule:
    """Use the same strength at every step.

    Examples:
        >>> constant(0.5)(1000)
        0.5
        >>> constant(0.5)
        constant(0.5)
    """
    return _Constant(alpha)


def linear(start: float, end: float, *, steps: int) -> Schedule:
    """Go from `start` to `end` in a straight line over `steps` losses, then stay at `end`.

    Args:
        start: The strength of the first loss.
        end: The strength after `steps` losses and later.
        steps: How many losses the change takes.

    Examples:
        >>> [linear(1.0, 0.0, steps=4)(step) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
        >>> linear(1.0, 0.0, steps=4)
        linear(1.0, 0.0, steps=4)
    """
    return _Ramp(start, end, steps, "linear")


def cosine(start: float, end: float, *, steps: int) -> Schedule:
    """Go from `start` to `end` along half a cosine over `steps` losses, then stay at `end`.

    Args:
        start: The strength of the first loss.
        end: The strength after `steps` losses and later.
        steps: How many losses the change takes.

    Examples:
        >>> [round(cosine(1.0, 0.0, steps=4)(step), 3) for step in (0, 1, 2, 4)]
        [1.0, 0.854, 0.5, 0.0]
    """
    return _Ramp(start, end, steps, "cosine")


def step(start: float, end: float, *, steps: int, at: float = 0.5) -> Schedule:
    """Use `start` for the first part of `steps` losses, then `end`.

    Args:
        start: The strength before the jump.
        end: The strength after it.
        steps: How many losses the whole run makes.
        at: The share of them made before the jump.

    Examples:
        >>> [step(1.0, 0.0, steps=4)(done) for done in (0, 1, 2, 4)]
        [1.0, 1.0, 0.0, 0.0]
    """
    if not 0 < at < 1:
        raise ValueError(f"`at`: expected a share between 0 and 1, got {at!r}")
    return _Ramp(start, end, steps, "step", at)


@runtime_checkable
class Adaptive(Protocol):
    """A strength per layer, chosen at each step from the two gradients at that layer.

    The gradients are those of the main loss and of a layer's own auxiliary loss with respect to
    that layer's output, over the whole batch. `probe.loss(y, main=...)` supplies them, at the cost
    of one more backward pass through activations (about a third of a training step).
    """

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        """Strengths `(layer,)` from the two squared norms and the inner product `(layer,)`."""


def balance(fraction: float = 0.5) -> Adaptive:
    """Keep the auxiliary gradient at a fraction of the main one, layer by layer.

    alpha = fraction * ||g_main|| / ||g_aux||, so you need not search for a strength.

    Examples:
        >>> one = torch.ones(1)
        >>> balance(0.5).weigh(main=4 * one, auxiliary=one, dot=0 * one)  # norms 2 and 1
        tensor([1.])
    """
    return _Balance(check_not_negative("fraction", fraction))


def gate(alpha: float = 1.0) -> Adaptive:
    """Send the auxiliary signal only into layers where it agrees with the main one.

    The strength is `alpha` where the cosine of the two gradients is positive, else 0.

    Examples:
        >>> one = torch.ones(2)
        >>> gate(2.0).weigh(main=one, auxiliary=one, dot=torch.tensor([0.3, -0.3]))
        tensor([2., 0.])
    """
    return _Gate(check_not_negative("alpha", alpha))


# Classes, not closures: probes are pickled with their schedule.


@dataclass(frozen=True)
class _Constant:
    alpha: float

    def __post_init__(self) -> None:
        _check_finite(self.alpha, self.alpha)

    def __call__(self, step: int) -> float:
        return float(self.alpha)

    def __repr__(self) -> str:
        return f"constant({self.alpha!r})"


@dataclass(frozen=True)
class _Ramp:
    """What `linear`, `cosine` and `step` make: a way from one strength to another."""

    start: float
    end: float
    steps: int
    shape: Literal["linear", "cosine", "step"]
    jump_at: float = 0.5  # the share of the steps before the jump of a "step"

    def __post_init__(self) -> None:
        _check_finite(self.start, self.end)
        if self.steps < 1:
            raise ValueError(f"`steps`: expected at least 1, got {self.steps}")

    def __call__(self, step: int) -> float:
        progress = min(max(step / self.steps, 0.0), 1.0)

        if self.shape == "step":
            return self.end if progress >= self.jump_at else self.start
        if self.shape == "cosine":
            progress = (1 - math.cos(math.pi * progress)) / 2
        return self.start + (self.end - self.start) * progress

    def __repr__(self) -> str:
        jump = f", at={self.jump_at!r}" if self.shape == "step" else ""
        return f"{self.shape}({self.start!r}, {self.end!r}, steps={self.steps!r}{jump})"


@dataclass(frozen=True)
class _Balance:
    fraction: float

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        # Where there is no auxiliary gradient, no strength makes it longer.
        smallest = torch.finfo(main.dtype).tiny
        ratio = (main / auxiliary.clamp_min(smallest)).sqrt()
        return torch.where(auxiliary > 0, self.fraction * ratio, 0.0)

    def __repr__(self) -> str:
        return f"balance({self.fraction!r})"


@dataclass(frozen=True)
class _Gate:
    alpha: float

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        # The sign of the inner product is that of the cosine.
        return torch.where(dot > 0, torch.full_like(dot, self.alpha), 0.0)

    def __repr__(self) -> str:
        return f"gate({self.alpha!r})"


def _check_finite(start: float, end: float) -> None:
    if not (math.isfinite(start) and math.isfinite(end)):
        raise ValueError(f"`alpha`: expected finite ends, got {start}, {end}")
