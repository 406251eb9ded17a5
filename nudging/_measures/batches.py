"""The same samples for every measure, batch by batch, at rest and with their credit."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from tqdm import tqdm

from nudging._replay.losses import Loss, per_sample
from nudging._replay.observe import find_blocks, record, why_full
from nudging._replay.replay import versions
from nudging._replay.state import State, count_samples
from resonance_toolkit import preserving, take, unwrap

Credit: TypeAlias = Callable[[State], Mapping[str, Tensor]]


class Observed(NamedTuple):
    """A batch, and the credit that a rule gives it, if there is one."""

    state: State
    credit: dict[str, Tensor]


@contextmanager
def observing(
    model: nn.Module,
    data: Any,
    blocks: str | Sequence[str],
    credit: Credit | None,
    *,
    loss: Loss | None,
    samples: int | None,
    batch_size: int,
    seed: int,
    dtype: torch.dtype | None = None,
    label: str = "",
) -> Iterator[Iterator[Observed]]:
    """Check what was given, draw the samples, and give an iterator over observed batches.

    Credits see the model itself; with another `dtype`, it then runs on copies of its parameters.
    """
    modules = find_blocks(model, blocks)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"`dtype`: expected a floating-point torch.dtype or None, got {dtype!r}")
    by_sample, core = per_sample(loss), unwrap(model)
    with torch.inference_mode(False):
        batches = take(data, samples, seed, model=core, batch_size=batch_size)
        tensors = _tensors(core, dtype)

    def batch_by_batch() -> Iterator[Observed]:
        first, full = 0, None
        for inputs, targets in tqdm(batches, desc=label, unit="batch", disable=None, leave=False):
            x, y = _cast((inputs, targets), dtype)
            state = record(core, x, y, modules, by_sample, full or "", first, tensors)
            if full is None:  # found out once
                full = why_full(state)
                state = replace(state, full=full)
            seen = state
            if credit is not None and tensors is not None:
                seen = record(core, inputs, targets, modules, by_sample, full, first)
            yield Observed(state, {} if credit is None else _ask(credit, seen, state))
            first += count_samples(inputs)

    with torch.inference_mode(False), preserving(core):
        yield batch_by_batch()


def _ask(credit: Credit, seen: State, state: State) -> dict[str, Tensor]:
    before = versions((seen.hidden, seen.inputs))
    given = credit(seen)
    if versions((seen.hidden, seen.inputs)) != before:
        raise ValueError("`credit`: expected to leave the state alone, but it wrote into it")
    return checked(given, state)


def checked(credit: Any, state: State) -> dict[str, Tensor]:
    """A credit for every block, finite and as large as its output, on the same device."""
    if not isinstance(credit, Mapping):
        raise TypeError(f"`credit`: expected a mapping by block, got {type(credit).__name__}")
    found: dict[str, Tensor] = {}
    for name, hidden in state.hidden.items():
        value = credit.get(name)
        if not isinstance(value, Tensor):
            known = ", ".join(map(str, credit)) or "nothing"
            raise ValueError(f"`credit`: expected a tensor for block {name!r}, got {known}")
        if value.shape != hidden.shape:
            raise ValueError(
                f"`credit` of {name!r}: expected {tuple(hidden.shape)}, got {tuple(value.shape)}"
            )
        if not value.isfinite().all():
            raise ValueError(f"`credit` of {name!r}: expected finite numbers, got NaN or infinity")
        # In its own precision: what is finite there may not be so in half precision.
        found[name] = value.detach().to(hidden.device)
    return found


def check_positive(name: str, value: float) -> float:
    """Refuse what is no positive, finite number."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise ValueError(f"`{name}`: expected a positive, finite number, got {value!r}")
    return float(value)


def check_credit(credit: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(credit):
        raise TypeError(
            f"`credit`: expected a callable (state) -> mapping, got {type(credit).__name__}"
        )


def check_whole(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or too small."""
    if type(value) is not int or value < least:
        raise ValueError(f"`{name}`: expected a whole number of at least {least}, got {value!r}")


def _tensors(model: nn.Module, dtype: torch.dtype | None) -> dict[str, Tensor] | None:
    """Parameters and buffers in another precision, or None where they have it already."""
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if dtype is None or all(t.dtype == dtype or not t.is_floating_point() for t in own.values()):
        return None
    cast: dict[str, Tensor] = _cast({name: t.detach() for name, t in own.items()}, dtype)
    return cast


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    def to(leaf: Tensor) -> Tensor:
        return leaf.to(dtype) if leaf.is_floating_point() else leaf

    return value if dtype is None else tree_map_only(Tensor, to, value)
