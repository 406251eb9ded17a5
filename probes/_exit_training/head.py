"""From a layer's output to logits: the model's own way there, found by following its last layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import Trace
from probes._model.distributed import gathered
from probes._model.pooling import Pool
from resonance_toolkit import evaluating, preserving_rng

# What models do between modules: nothing, or one of these ways to pool positions.
_GLUES: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "first token": lambda x: x[:, 0],
    "mean": lambda x: x.mean(1),
    "mean without first token": lambda x: x[:, 1:].mean(1),
    "mean without five tokens": lambda x: x[:, 5:].mean(1),
    "mean of a map": lambda x: x.mean((-2, -1)),
    "mean of a map, channels last": lambda x: x.mean((1, 2)),
    "flatten": lambda x: x.flatten(1),
}


@dataclass(frozen=True)
class Head:
    """A way from a layer's output to logits.

    The model's modules are known by name, so that a copy of the exits serves a copy of the model.
    """

    steps: tuple[tuple[str, str], ...]  # a glue, then a module ("" for none)
    norm: Callable[[Tensor], Tensor] | None = None  # the user's, before the steps
    custom: Callable[[Tensor], Tensor] | None = None  # the user's, after them

    def __call__(self, root: nn.Module, hidden: Tensor) -> Tensor:
        """Logits, or features where the last module is left out."""
        given = [f for f in (self.norm, self.custom) if f is not None and not isinstance(f, Pool)]
        with gathered(root, self.modules, own=bool(given)):
            x = hidden if self.norm is None else self.norm(hidden)
            for glue, name in self.steps:
                x = _GLUES[glue](x)
                x = root.get_submodule(name)(x) if name else x
            return x if self.custom is None else self.custom(x)

    @property
    def modules(self) -> list[str]:
        """Names of the model's modules on the way."""
        return [name for _, name in self.steps if name]

    def without_head(self) -> "Head":
        """The way up to the last module."""
        index = max(i for i, (_, name) in enumerate(self.steps) if name)
        return Head((*self.steps[:index], (self.steps[index][0], "")), self.norm)

    def without_norm(self, root: nn.Module, norm: Callable[[Tensor], Tensor] | None) -> "Head":
        """The same pooling and head; of what lies before, only modules without parameters."""
        head = self.modules[-1]
        kept = tuple(
            (glue, "" if name != head and _has_parameters(root, name) else name)
            for glue, name in self.steps
        )
        return Head(kept, norm)

    def __str__(self) -> str:
        words = [word for step in self.steps for word in step if word]
        if self.norm is not None:
            words.insert(0, _name(self.norm))
        if self.custom is not None:
            words.append(_name(self.custom))
        return " > ".join(words) or "as it is"


@torch.no_grad()
def follow(root: nn.Module, trace: Trace) -> Head:
    """Find the way from the last layer's output to the model's logits, and prove it.

    Raises:
        ValueError: If the model does something on the way that is neither a module nor pooling, or
            passes another layer of the kind listed.
    """
    x = trace.hidden[trace.layers[-1]]
    later = [c for c in trace.calls if c.began > trace.last.ended]
    steps: list[tuple[str, str]] = []
    while (last := _matching(x, trace.logits)) is None:
        for call in later:
            glue = None if call.taken is None else _matching(x, call.taken)
            if glue is not None and call.given is not None:
                break
        else:
            raise ValueError(_lost(trace, steps))
        steps.append((glue, call.name))
        x, later = call.given, [c for c in later if c.began > call.ended]
    head = Head((*steps, (last, "")) if last else tuple(steps))
    if not head.modules:
        raise ValueError(
            f"`layers`: expected layers before the model's head, but {trace.layers[-1]!r} yields "
            "the model's output itself"
        )
    kinds = {type(root.get_submodule(name)) for name in trace.layers}
    for name in head.modules[:-1]:
        if type(root.get_submodule(name)) in kinds:
            raise ValueError(
                f"`layers`: expected the model's last layer in last place, got "
                f"{trace.layers[-1]!r}, which {name!r} follows"
            )
    # Something done in place would have deceived the search: the whole way must give the logits.
    with evaluating(root), preserving_rng():
        proof = head(root, trace.hidden[trace.layers[-1]])
    if not is_same(proof, trace.logits):
        raise ValueError(_lost(trace, steps))
    _check_rivals(root, trace, head)
    return head


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors come from the same operations on the same numbers."""
    return _error(a, b) <= _tolerance(b)


def _check_rivals(root: nn.Module, trace: Trace, head: Head) -> None:
    """Refuse a second head while the logits are alike for all inputs: they prove nothing then."""
    rows = trace.logits.flatten(0, -2)
    if not torch.equal(rows, rows[:1].expand_as(rows)):
        return
    way = head.modules
    for call in trace.calls:
        if call.given is None or call.given.shape != trace.logits.shape:
            continue
        outside = not any(f"{call.name}.".startswith(f"{name}.") for name in way)
        if outside and call.began > trace.last.ended and _has_parameters(root, call.name):
            raise ValueError(
                f"`head`: expected one head, found {way[-1]!r} and {call.name!r}, and logits that "
                "are the same for every input (weights of 0?) do not tell which counts; give "
                "`head` as a callable from a layer's output to logits"
            )


def _matching(x: Tensor, wanted: Tensor) -> str | None:
    """The glue that makes `wanted` of `x` best, if any does."""
    best, least = None, math.inf
    for name, glue in _GLUES.items():
        try:
            made = glue(x)
        except (IndexError, RuntimeError):  # not that many axes
            continue
        error = _error(made, wanted)
        if error <= _tolerance(wanted) and error < least:
            best, least = name, error
    return best


def _error(a: Tensor, b: Tensor) -> float:
    """The largest difference, in units of the largest value; infinite for other shapes."""
    if a is b:
        return 0.0
    if (
        a.shape != b.shape
        or not a.is_floating_point()
        or not b.is_floating_point()
        or not a.numel()
    ):
        return math.inf
    gap, size = float((a.to(b.device) - b).abs().max()), float(b.abs().max())
    return gap / size if size > 0 else math.inf * gap if gap else 0.0


def _tolerance(x: Tensor) -> float:
    return min(100 * torch.finfo(x.dtype).eps, 0.02) if x.is_floating_point() else 0.0


def _lost(trace: Trace, steps: list[tuple[str, str]]) -> str:
    seen = "".join(f" > {name}" for _, name in steps)
    return (
        f"`head`: cannot follow the model from {trace.layers[-1]!r}{seen} to its output. The last "
        "of `layers` must be the model's last layer, followed by modules and pooling only; else "
        "give `head` as a callable from a layer's output to logits"
    )


def _has_parameters(root: nn.Module, name: str) -> bool:
    return bool(name) and next(root.get_submodule(name).parameters(), None) is not None


def _name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))
