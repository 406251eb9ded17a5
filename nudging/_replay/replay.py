"""Run a model again from one block on: what ended before that block is not computed twice.

A `Recorder` sees one forward pass; a `Replayer` answers from its record in later ones. Both are
interceptors: `intercepting` sends every call of certain modules through them.

With blocks b1 and b2, a replay after b1 goes like this (time runs to the right):

    recorded pass   model( stem(..)  b1(..)  norm(..)  b2(..)  head(..) )
    replay          model( recorded  changed computed  computed computed )

The model's own `forward` runs in every pass. Of the modules that it calls, those whose call ended
no later than b1 return a recorded output at once. A module that b1 is inside of has not ended by
then: it runs, and its calls are answered in the same way, one level deeper.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

Forward: TypeAlias = Callable[..., Any]

# Called as (module, forward, args, kwargs) in place of `forward(*args, **kwargs)`.
Interceptor: TypeAlias = Callable[[nn.Module, Forward, Any, Any], Any]


@dataclass
class Call:
    """One call of a module.

    Attributes:
        module: What was called.
        output: A copy of what came out.
        end: The place of this call among all recorded ones, in the order in which they ended.
        is_overwritten: Whether what followed wrote into the output (`relu_`, `+=`).
        calls: Those made inside, if the module holds a block.
    """

    module: nn.Module
    output: Any = None
    end: int = 0
    is_overwritten: bool = False
    calls: list["Call"] = field(default_factory=list)


class Recorder:
    """Keep the calls of a forward pass, as deep as blocks are nested.

    Attributes:
        watched: The modules whose calls are of interest.
        calls: Made by the model itself, in order.
        ends: The place at which each block's latest call ended, see `Call.end`.
    """

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module]) -> None:
        self.ends = dict.fromkeys(blocks, 0)
        self.calls: list[Call] = []

        # Only these are looked into; the calls inside any other module end when it ends.
        self._holders = {
            module
            for module in model.modules()
            if any(inner in self.ends for inner in _descendants(module))
        }
        self.watched = list(dict.fromkeys(_find_watched(model, self._holders)))

        self._open_calls = [self.calls]
        self._is_inside_other_module = False
        self._n_ended = 0
        self._blocks_to_come = set(self.ends)
        self._outputs: list[tuple[Call, Tensor, int]] = []

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Make a call, and write it down if a replay may ask for it."""
        if self._is_inside_other_module or not self._blocks_to_come:
            return forward(*args, **kwargs)

        call = Call(module)
        self._open_calls[-1].append(call)
        self._open_calls.append(call.calls)
        self._is_inside_other_module = module not in self._holders
        try:
            output = forward(*args, **kwargs)
        finally:
            self._is_inside_other_module = False
            self._open_calls.pop()

        call.end = self._n_ended
        self._n_ended += 1

        # After the last block no replay asks for an output.
        if self._blocks_to_come:
            # A copy: what follows may write into the output.
            call.output = copy_tensors(output)
            leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            self._outputs.extend((call, leaf, leaf._version) for leaf in leaves)

        if module in self.ends:
            self.ends[module] = call.end
            self._blocks_to_come.discard(module)
        return output

    def finish(self) -> None:
        """Note which outputs were written into, and let go of the pass's own tensors."""
        for call, leaf, version in self._outputs:
            call.is_overwritten |= leaf._version != version
        self._outputs.clear()


class Replayer:
    """Answer calls that ended no later than a block from the record, and make all others."""

    def __init__(self, record: Recorder, block: nn.Module) -> None:
        self._block = block
        self._block_end = record.ends[block]
        self._recorded_calls = [iter(record.calls)]
        self._is_past_block = False

    def __call__(self, module: nn.Module, forward: Forward, args: Any, kwargs: Any) -> Any:
        """Return what was recorded, or make the call."""
        if self._is_past_block:
            return forward(*args, **kwargs)

        call = next(self._recorded_calls[-1], None)
        if call is None or call.module is not module:
            raise RuntimeError("the model makes other calls when it runs on the same inputs again")

        if call.end <= self._block_end:
            self._is_past_block = module is self._block
            return copy_tensors(call.output) if call.is_overwritten else call.output

        self._recorded_calls.append(iter(call.calls))
        try:
            return forward(*args, **kwargs)
        finally:
            self._recorded_calls.pop()


@contextmanager
def intercepting(modules: Iterable[nn.Module], interceptor: Interceptor) -> Iterator[None]:
    """Send every call of the modules through `interceptor(module, forward, args, kwargs)`."""
    previous_forwards: list[tuple[dict[str, Any], Any]] = []
    try:
        for module in modules:
            attributes = vars(module)
            # Some libraries set a `forward` on the object, over that of the class.
            previous_forwards.append((attributes, attributes.get("forward")))
            attributes["forward"] = _divert(module, interceptor)
        yield
    finally:
        for attributes, previous_forward in previous_forwards:
            attributes.pop("forward", None)
            if previous_forward is not None:
                attributes["forward"] = previous_forward


def copy_tensors(nest: Any) -> Any:
    """Return the same nest of tensors, each detached and in memory of its own."""
    return tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), nest)


def tensor_versions(nest: Any) -> list[int]:
    """Count how often each tensor of a nest was written into."""
    return [leaf._version for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


def _divert(module: nn.Module, interceptor: Interceptor) -> Forward:
    forward = module.forward
    return lambda *args, **kwargs: interceptor(module, forward, args, kwargs)


def _descendants(module: nn.Module) -> Iterator[nn.Module]:
    return (inner for inner in module.modules() if inner is not module)


def _find_watched(module: nn.Module, holders: set[nn.Module]) -> Iterator[nn.Module]:
    """Yield children of the model, of all that hold blocks, and of lists, which nobody calls."""
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            continue  # cannot be diverted, so it runs every time

        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict)
        if not is_list:
            yield child
        if is_list or child in holders:
            yield from _find_watched(child, holders)
