"""Walks over autograd graphs, and what a second backward pass through one needs."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch._functorch import config as functorch_config

from resonance_toolkit import devices_of, is_compiled, preserving_rng


class Step(NamedTuple):
    """One edge of an autograd graph: `node` sends its gradient number `position` to `target`."""

    node: Any
    position: int
    target: tuple[Any, int]  # a node, and the number of its output


def walk(loss: Tensor, stops: Collection[tuple[Any, int]] = ()) -> Iterator[Step]:
    """Follow a loss's graph towards the leaves, each edge once, and not beyond `stops`."""
    pending = [] if loss.grad_fn is None else [loss.grad_fn]
    visited = set(pending)

    while pending:
        node = pending.pop()
        for position, target in enumerate(node.next_functions):
            if target[0] is None:
                continue
            yield Step(node, position, target)

            if target[0] not in visited and target not in stops:
                visited.add(target[0])
                pending.append(target[0])


def reached_leaves(loss: Tensor) -> tuple[dict[int, Tensor], bool]:
    """Find the leaves that a loss reaches, by id, and whether a part of the graph is compiled.

    Raises:
        ValueError: If the graph runs through a reentrant checkpoint, which hides its leaves.
    """
    leaves: dict[int, Tensor] = {}
    has_compiled_part = False

    for step in walk(loss):
        node = step.target[0]
        kind = type(node).__name__

        if kind == "AccumulateGrad":
            leaves[id(node.variable)] = node.variable
        elif kind == "CheckpointFunctionBackward":
            raise ValueError(
                "losses: reentrant activation checkpointing hides the gradients of single losses; "
                "use `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`"
            )
        has_compiled_part |= kind.startswith("CompiledFunction")

    return leaves, has_compiled_part


# `donated_buffer` as it was before each trace that needs it off; the oldest is at the bottom.
_previous_settings: list[bool] = []


def keep_compiled_buffers(model: nn.Module) -> Callable[[], None]:
    """Have what is compiled from now on keep its buffers for more than one backward pass.

    A compiled backward otherwise raises when the graph is to be retained. It is a setting of the
    whole process, read when something is compiled; it costs memory, not results.

    Returns:
        What gives the setting back, once no other trace needs it.
    """
    if not any(is_compiled(module) for module in model.modules()):
        return _change_nothing

    _previous_settings.append(bool(functorch_config.donated_buffer))
    functorch_config.donated_buffer = False
    return _restore_compiler_setting


def _restore_compiler_setting() -> None:
    # Traces close in any order. Only the last pop, which is the first trace's entry, holds the
    # user's own setting; all others hold False.
    previous = _previous_settings.pop()
    if not _previous_settings:
        functorch_config.donated_buffer = previous


def _change_nothing() -> None:
    """Stand in for the restoring function where nothing was changed."""


@contextmanager
def restoring_buffers_and_rng(model: nn.Module) -> Iterator[None]:
    """Give buffers and random states back after a further backward pass.

    Activation checkpointing runs parts of the forward again in each pass: batch norm would count
    the batch once more, and dropout may draw once more.
    """
    # All of them: batch norm does not say, by a new version, that it has written.
    copies = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]

    with preserving_rng(devices_of(model)):
        try:
            yield
        finally:
            for buffer, copy in copies:
                # Through `.data`: the graph still to be differentiated sees no new version.
                buffer.data.copy_(copy)
