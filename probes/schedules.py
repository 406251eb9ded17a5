"""Strengths of the auxiliary signal: by step, or adapted to the main gradient."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Adaptive", "Schedule", "balance", "constant", "cosine", "gate", "linear", "step"]

Schedule = Callable[[int], float]


def constant(alpha: float) -> Schedule:
    """The same strength at every step.

    Examples:
        >>> constant(0.5)(1000)
        0.5
    """
    return _Ramp(alpha, alpha, 1, "linear")


def linear(start: float, end: float, *, steps: int) -> Schedule:
    """From `start` to `end` in a straight line over `steps` losses, then `end`.

    Examples:
        >>> [linear(1.0, 0.0, steps=4)(step) for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """
    return _Ramp(start, end, steps, "linear")


def cosine(start: float, end: float, *, steps: int) -> Schedule:
    """From `start` to `end` along half a cosine over `steps` losses, then `end`.

    Examples:
        >>> [round(cosine(1.0, 0.0, steps=4)(step), 3) for step in (0, 1, 2, 4)]
        [1.0, 0.854, 0.5, 0.0]
    """
    return _Ramp(start, end, steps, "cosine")


def step(start: float, end: float, *, steps: int, at: float = 0.5) -> Schedule:
    """`start` for the first part of `steps` losses, then `end`.

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


@dataclass(frozen=True)
class _Ramp:  # a class, not a closure: probes are pickled with their schedule
    start: float
    end: float
    steps: int
    shape: str
    at: float = 0.5  # where a "step" is

    def __post_init__(self) -> None:
        if not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise ValueError(f"`alpha`: expected finite ends, got {self.start}, {self.end}")
        if self.steps < 1:
            raise ValueError(f"`steps`: expected at least 1, got {self.steps}")

    def __call__(self, step: int) -> float:
        done = min(max(step / self.steps, 0.0), 1.0)
        if self.shape == "step":
            return self.end if done >= self.at else self.start
        if self.shape == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done


@runtime_checkable
class Adaptive(Protocol):
    """A strength per layer, decided anew at each step from the gradients that meet there.

    The gradients are those of the main loss and of a layer's own auxiliary loss with respect to
    that layer's output, over the whole batch. `probe.loss(y, main=...)` supplies them, at the cost
    of one more backward pass through activations (about a third of a training step).
    """

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        """Strengths `(layer,)` from the two squared norms and the inner product `(layer,)`."""


def balance(fraction: float = 0.5) -> Adaptive:
    """Keep the auxiliary gradient at a fraction of the main one, layer by layer.

    alpha = fraction * ||g_main|| / ||g_aux||, so there is no strength to search for.

    Examples:
        >>> one = torch.ones(1)
        >>> balance(0.5).weigh(main=4 * one, auxiliary=one, dot=0 * one)  # norms 2 and 1
        tensor([1.])
    """
    return _Balance(_checked("fraction", fraction))


def gate(alpha: float = 1.0) -> Adaptive:
    """Let the auxiliary signal pass only at layers where it points along the main one.

    alpha where the cosine of the two gradients is positive, else 0.

    Examples:
        >>> one = torch.ones(2)
        >>> gate(2.0).weigh(main=one, auxiliary=one, dot=torch.tensor([0.3, -0.3]))
        tensor([2., 0.])
    """
    return _Gate(_checked("alpha", alpha))


@dataclass(frozen=True)
class _Balance:
    fraction: float

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        ratio = (main / auxiliary.clamp_min(torch.finfo(main.dtype).tiny)).sqrt()
        return torch.where(auxiliary > 0, self.fraction * ratio, 0.0)


@dataclass(frozen=True)
class _Gate:
    alpha: float

    def weigh(self, main: Tensor, auxiliary: Tensor, dot: Tensor) -> Tensor:
        return torch.where(dot > 0, torch.full_like(dot, self.alpha), 0.0)


def _checked(name: str, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}`: expected a finite number of at least 0, got {value!r}")
    return float(value)
