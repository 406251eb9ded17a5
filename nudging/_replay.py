"""Run a model again from one block on: what ended before that block is not computed twice."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Forward = Callable[..., Any]


@dataclass
class Call:
    """One call of a module: what came out, and the calls inside it if it holds a block."""

    module: nn.Module
    output: Any = None
    end: int = 0  # its place among all calls, by the time they ended
    spoiled: bool = False  # what followed wrote into the output
    calls: list["Call"] = field(default_factory=list)


class Recorder:
    """Keep the calls of a forward pass, as deep as blocks are nested.

    Attributes:
        calls: Made by the model itself, in order.
        ends: When each block's call ended.
    """

    def __init__(self, blocks: Mapping[str, nn.Module]) -> None:
        self.blocks = set(blocks.values())
        self.calls: list[Call] = []
        self.ends: dict[nn.Module, list[int]] = {block: [] for block in self.blocks}
        self._stack = [self.calls]
        self._opaque, self._ended = False, 0
        self._watched: list[tuple[Call, Tensor, int]] = []

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self._opaque:
            return forward(*args, **kwargs)
        call = Call(module)
        self._stack[-1].append(call)
        self._stack.append(call.calls)
        self._opaque = not holds(module, self.blocks)
        try:
            output = forward(*args, **kwargs)
        finally:
            self._opaque = False
            self._stack.pop()
        # A copy: what follows may write into the output (`relu_`, `+=`).
        call.output, call.end = copied(output), self._ended
        self._ended += 1
        leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        self._watched.extend((call, leaf, leaf._version) for leaf in leaves)
        if module in self.ends:
            self.ends[module].append(call.end)
        return output

    def finish(self) -> list[Call]:
        """Note what was written into, and let go of the pass's own tensors."""
        for call, leaf, version in self._watched:
            call.spoiled |= leaf._version != version
        self._watched.clear()
        return self.calls


class Replayer:
    """Answer calls that ended no later than a block from the record, and make all others."""

    def __init__(self, calls: list[Call], block: nn.Module, end: int) -> None:
        self.block, self.end = block, end
        self._stack = [iter(calls)]
        self._passed = False

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self._passed:
            return forward(*args, **kwargs)
        call = next(self._stack[-1], None)
        if call is None or call.module is not module:
            raise Diverged(f"{type(module).__name__} is not what ran here at first")
        if call.end <= self.end:
            self._passed = module is self.block
            return copied(call.output) if call.spoiled else call.output
        self._stack.append(iter(call.calls))
        try:
            return forward(*args, **kwargs)
        finally:
            self._stack.pop()


class Diverged(RuntimeError):
    """A model that makes other calls on the same inputs."""


@contextmanager
def intercepting(model: nn.Module, through: Callable[..., Any]) -> Iterator[None]:
    """Send every call of a submodule through `through(module, forward, args, kwargs)`."""
    with ExitStack() as stack:
        for module in model.modules():
            if module is not model and not isinstance(module, torch.jit.ScriptModule):
                stack.enter_context(_forwarding(module, through))
        yield


@contextmanager
def _forwarding(module: nn.Module, through: Callable[..., Any]) -> Iterator[None]:
    forward, own = module.forward, vars(module)
    before = own.get("forward")  # some libraries set one on the instance

    def instead(*args: Any, **kwargs: Any) -> Any:
        return through(module, forward, args, kwargs)

    try:
        own["forward"] = instead
        yield
    finally:
        if before is None:
            own.pop("forward", None)
        else:
            own["forward"] = before


def holds(module: nn.Module, blocks: Collection[nn.Module]) -> bool:
    """Whether a block is inside a module."""
    return any(inner in blocks for inner in module.modules() if inner is not module)


def copied(value: Any) -> Any:
    """The same nest of tensors, each detached and in memory of its own."""
    return tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), value)
