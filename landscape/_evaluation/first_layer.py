"""First-layer linearity: a linear layer that reads the data is linear in its moving weights too.

Its output at `weights + a * d1 + b * d2` is `y0 + a * y1 + b * y2`: three products computed once
instead of one for each point. In an MLP on images that layer is most of the work.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from landscape._directions.parameters import Params
from landscape._directions.random_directions import Direction
from resonance_toolkit import Batches, evaluating, preserving, unwrap

_MIN_INPUTS = 32  # below, two additions cost as much as the product


class FirstLayer:
    """The products of one linear layer, batch by batch."""

    def __init__(self, name: str) -> None:
        self.names = {f"{name}.weight", f"{name}.bias"}
        self.products: list[list[Tensor]] = []
        self.batch = 0
        self.point: Sequence[float] = ()

    def forward(self, _inputs: Tensor) -> Tensor:
        """What the layer gives for the current batch at the current point."""
        start, *slopes = self.products[self.batch]
        total = start
        for distance, slope in zip(self.point, slopes, strict=True):
            total = torch.add(total, slope, alpha=distance)
        return total if total is not start else start.clone()


@contextmanager
def following_first_layer(
    model: nn.Module, name: str, axes: Sequence[Direction], batches: Batches
) -> Iterator[FirstLayer]:
    """Let the layer called `name` answer from its products; the caller sets batch and point."""
    module = cast(nn.Linear, unwrap(model).get_submodule(name))
    layer = FirstLayer(name)
    inputs: list[Tensor] = []
    with module.register_forward_pre_hook(lambda _module, args: inputs.append(args[0])):
        for x, _ in batches:
            model(x)
            given = inputs.pop()
            layer.products.append([F.linear(given, module.weight, module.bias)])
            for axis in axes:  # written out one at a time
                step = F.linear(given, axis[f"{name}.weight"], axis.get(f"{name}.bias"))
                layer.products[-1].append(step)
    try:
        vars(module)["forward"] = layer.forward
        yield layer
    finally:
        vars(module).pop("forward", None)


def find_first_layer(model: nn.Module, moving: Params, x: Any) -> tuple[str, int] | None:
    """Find a linear layer whose input does not depend on anything that moves.

    Known from autograd: with every moving tensor requiring gradients, the layer's input needs none.

    Returns:
        The layer's name and the bytes of its output for each sample, or None.
    """
    if unwrap(model) is not model or any(_is_compiled(m) for m in model.modules()):
        return None  # compiled and parallel models keep copies of the forward
    calls: dict[str, list[int]] = {}
    with ExitStack() as stack:
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.enable_grad())
        for tensor in moving.values():
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(True)
        for name, module in model.named_modules():
            plain = type(module) is nn.Linear and "forward" not in vars(module)
            if plain and f"{name}.weight" in moving and module.in_features >= _MIN_INPUTS:
                stack.enter_context(module.register_forward_hook(_noting(calls, name)))
        model(tree_map(lambda leaf: leaf[:2], x))
    found = ((name, sizes[0]) for name, sizes in calls.items() if len(sizes) == 1 and sizes[0])
    return next(found, None)


def _is_compiled(module: nn.Module) -> bool:
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or hasattr(module.forward, "_torchdynamo_orig_callable")


def _noting(calls: dict[str, list[int]], name: str) -> Any:
    def note(_module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        fixed = bool(args) and isinstance(args[0], Tensor) and not args[0].requires_grad
        bytes_per_sample = output.numel() * output.element_size() // max(len(output), 1)
        calls.setdefault(name, []).append(bytes_per_sample if fixed else 0)

    return note
