"""What the user asked for, checked before any work."""

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.optim import Optimizer

from resonance_toolkit import Loss, check_choice, check_whole, name_of, preserving_rng, probes
from resonance_toolkit._front.examine.budget import Budget, seconds_of

Part: TypeAlias = Literal[
    "model", "response", "gradients", "landscape", "curvature", "attention", "nudging"
]
PARTS: tuple[Part, ...] = (
    "model",
    "response",
    "gradients",
    "landscape",
    "curvature",
    "attention",
    "nudging",
)

MakeOptimizer: TypeAlias = Callable[[Iterable[nn.Parameter]], Optimizer]


@dataclass(frozen=True, eq=False)
class Settings:
    """The arguments of `examine` but model and data; see there."""

    layers: str | Sequence[str] | None
    n: int
    alpha: Any
    loss: Loss | None
    budget: Budget
    steps: int | None
    seeds: int | None
    samples: int | None
    parts: tuple[str, ...]
    optimizer: MakeOptimizer | None
    batch_size: int | None
    held_out: Any
    seed: int
    title: str | None

    @property
    def holds_out_data(self) -> bool:
        """Whether the user holds samples out, not a number of them."""
        return self.held_out is not None and not isinstance(self.held_out, Integral)

    @property
    def budget_seconds(self) -> float:
        """The budget as a number."""
        return seconds_of(self.budget)

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            ValueError, TypeError: Naming the argument, what was expected, and what came.
        """
        seconds_of(self.budget)
        check_whole("n", self.n)
        check_whole("seed", self.seed, at_least=0)
        for name in ("steps", "seeds", "samples", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)

        if isinstance(self.held_out, Integral):
            check_whole("held_out", self.held_out)
        check_alpha(self.alpha)

        if not self.parts:
            raise ValueError(f"`parts`: expected some of {', '.join(PARTS)}, got none")
        for part in self.parts:
            check_choice("parts", part, PARTS)
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(f"`parts`: expected different names, got {', '.join(self.parts)}")

        for name in ("loss", "optimizer"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                kind = type(value).__name__
                expected = "(outputs, targets)" if name == "loss" else "parameters -> optimizer"
                raise TypeError(f"`{name}`: expected a callable {expected}, got {kind}")
        if isinstance(self.optimizer, Optimizer):
            raise TypeError(
                "`optimizer`: expected a callable that makes one for given parameters, such as "
                "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
            )
        if self.title is not None and not isinstance(self.title, str):
            raise TypeError(f"`title`: expected text, got {type(self.title).__name__}")

    def describe(self) -> dict[str, str]:
        """All of them as text, by which two runs are compared."""
        return {
            "layers": repr(self.layers),
            "n": str(self.n),
            "alpha": describe_alpha(self.alpha),
            "loss": "none" if self.loss is None else name_of(self.loss),
            "budget": str(self.budget),
            "steps": str(self.steps),
            "seeds": str(self.seeds),
            "samples": str(self.samples),
            "parts": ", ".join(self.parts),
            "optimizer": "none" if self.optimizer is None else name_of(self.optimizer),
            "batch_size": str(self.batch_size),
            "seed": str(self.seed),
            "held_out_samples": "" if self.holds_out_data else str(self.held_out),
        }


def settle_parts(parts: Any) -> tuple[str, ...]:
    """Return the parts that are meant: all of them by default, one if it is a single name."""
    if parts is None:
        return PARTS
    if isinstance(parts, str):
        return (parts,)
    if not isinstance(parts, Iterable):
        raise TypeError(f"`parts`: expected names of parts, got {type(parts).__name__}")
    return tuple(parts)


def describe_alpha(alpha: Any) -> str:
    """The strength of the branches in words: a number as such, a schedule by its name."""
    text = name_of(alpha) if callable(alpha) else repr(alpha)

    # An address is another one in each process.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def check_alpha(alpha: Any) -> None:
    """Refuse what is no strength, as `probes.attach` would; a mapping is left to it.

    Raises:
        ValueError, TypeError: Naming `alpha`.
    """
    if isinstance(alpha, Mapping):
        return
    with preserving_rng():
        # On the CPU, whatever the default device is: its generator is not given back here.
        stand_in = nn.Sequential(nn.Linear(2, 2, device="cpu"), nn.Linear(2, 2, device="cpu"))
        # An adaptive rule belongs to the first probe that it is given to.
        probes.attach(stand_in, "0", n=1, alpha=copy.deepcopy(alpha)).detach()
