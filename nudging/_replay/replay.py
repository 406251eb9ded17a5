"""Run a model again from one block on: what ended before that block is not computed twice."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Forward = Callable[..., Any]
Through = Callable[[nn.Module, Forward, Any, Any], Any]


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
        watched: The modules whose calls are of interest.
        calls: Made by the model itself, in order.
        ends: When each block's latest call ended.
    """

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        self.ends = dict.fromkeys(blocks, 0)
        self.calls: list[Call] = []
        self._holders = {m for m in model.modules() if any(i in self.ends for i in _inside(m))}
        self.watched = list(dict.fromkeys(_watched(model, self._holders)))
        self._stack = [self.calls]
        self._opaque, self._ended, self._ahead = False, 0, set(self.ends)
        self._outputs: list[tuple[Call, Tensor, int]] = []

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self._opaque or not self._ahead:
            return forward(*args, **kwargs)
        call = Call(module)
        self._stack[-1].append(call)
        self._stack.append(call.calls)
        self._opaque = module not in self._holders
        try:
            output = forward(*args, **kwargs)
        finally:
            self._opaque = False
            self._stack.pop()
        call.end, self._ended = self._ended, self._ended + 1
        if self._ahead:  # else nothing will ask for it
            # A copy: what follows may write into the output (`relu_`, `+=`).
            call.output = copied(output)
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            self._outputs.extend((call, leaf, leaf._version) for leaf in leaves)
        if module in self.ends:
            self.ends[module] = call.end
            self._ahead.discard(module)
        return output

    def finish(self) -> None:
        """Note what was written into, and let go of the pass's own tensors."""
        for call, leaf, version in self._outputs:
            call.spoiled |= leaf._version != version
        self._outputs.clear()


class Replayer:
    """Answer calls that ended no later than a block from the record, and make all others."""

    def __init__(self, record: Recorder, block: nn.Module) -> None:
        self._block, self._end = block, record.ends[block]
        self._stack = [iter(record.calls)]
        self._passed = False

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        if self._passed:
            return forward(*args, **kwargs)
        call = next(self._stack[-1], None)
        if call is None or call.module is not module:
            raise RuntimeError("the model makes other calls when it runs on the same inputs again")
        if call.end <= self._end:
            self._passed = module is self._block
            return copied(call.output) if call.spoiled else call.output
        self._stack.append(iter(call.calls))
        try:
            return forward(*args, **kwargs)
        finally:
            self._stack.pop()


@contextmanager
def intercepting(modules: Iterable[nn.Module], through: Through) -> Iterator[None]:
    """Send every call of the modules through `through(module, forward, args, kwargs)`."""
    own: list[tuple[dict[str, Any], Any]] = []
    try:
        for module in modules:
            attributes = vars(module)
            own.append((attributes, attributes.get("forward")))  # some libraries set one there
            attributes["forward"] = _diverted(module, through)
        yield
    finally:
        for attributes, before in own:
            attributes.pop("forward", None)
            if before is not None:
                attributes["forward"] = before


def copied(value: Any) -> Any:
    """The same nest of tensors, each detached and in memory of its own."""
    return tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), value)


def versions(value: Any) -> list[int]:
    """How often each tensor of a nest was written into."""
    return [leaf._version for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _diverted(module: nn.Module, through: Through) -> Forward:
    forward = module.forward
    return lambda *args, **kwargs: through(module, forward, args, kwargs)


def _inside(module: nn.Module) -> Iterator[nn.Module]:
    return (inner for inner in module.modules() if inner is not module)


def _watched(module: nn.Module, holders: set[nn.Module]) -> Iterator[nn.Module]:
    """Children of the model, of all that hold blocks, and of lists, which nobody calls."""
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            continue  # cannot be diverted: runs every time
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if not is_list:
            yield child
        if is_list or child in holders:
            yield from _watched(child, holders)
