from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from nudging._loss import Loss, losses_of
from nudging._replay import Call, Replayer, intercepting
from resonance import device_of, evaluating, preserving_rng


@dataclass(frozen=True, eq=False, repr=False)
class State:
    """One batch of a model at rest, as a credit rule sees it; made by `observe`.

    A block is a named module whose output is one tensor, samples first.

    Attributes:
        model: The model, which a credit must leave as it is.
        blocks: Names, in the order in which the blocks ran.
        inputs: What the model was called with.
        targets: What the loss compares with.
        hidden: Each block's output, detached, in the order of `blocks`.
        outputs: What the model returned, detached.
        loss: `(outputs, targets)` to one loss per sample, `(sample,)`.
        full: Why a change of one block needs a full pass; empty if what follows is enough.
    """

    model: nn.Module
    blocks: tuple[str, ...]
    inputs: Any
    targets: Any
    hidden: dict[str, Tensor]
    outputs: Any
    loss: Loss
    full: str
    _modules: Mapping[str, nn.Module] = field(default_factory=dict)
    _calls: list[Call] = field(default_factory=list)
    _ends: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.hidden.values())))

    def __repr__(self) -> str:
        return f"State({type(self.model).__name__}, {len(self)} samples, {', '.join(self.blocks)})"

    def losses(self, outputs: Any = None) -> Tensor:
        """The loss of each sample, `(sample,)`; of the model at rest unless outputs are given."""
        return losses_of(
            self.loss, self.outputs if outputs is None else outputs, self.targets, len(self)
        )

    def rest(self, block: str, value: Tensor) -> Any:
        """What the model returns if a block's output is replaced; only what follows is computed.

        Args:
            block: One of `blocks`.
            value: Like `hidden[block]`; the result can be differentiated with respect to it.

        Raises:
            ValueError: If there is no such block, or the value has another shape.
        """
        if block not in self.hidden:
            raise ValueError(f"`block`: expected one of {', '.join(self.blocks)}, got {block!r}")
        if value.shape != self.hidden[block].shape:
            wanted = tuple(self.hidden[block].shape)
            raise ValueError(f"`value`: expected {wanted}, got {tuple(value.shape)}")
        return self._rest(block, {block: lambda _: value.clone()})  # what follows may write into it

    def gradient(self) -> dict[str, Tensor]:
        """By block, the gradient of each sample's loss (their sum, not mean), in one backward pass.

        It is zero where a block does not reach the loss.
        """
        points: dict[str, Tensor] = {}

        def hold(name: str) -> Callable[[Tensor], Tensor]:
            def replace(output: Tensor) -> Tensor:
                point = self.hidden[name] if name == self.blocks[0] else output
                if not point.requires_grad:
                    point = point.detach().requires_grad_()
                points[name] = point
                return point.clone()  # what follows may write into it

            return replace

        with torch.enable_grad():
            outputs = self._rest(self.blocks[0], {name: hold(name) for name in self.blocks})
            total = self.losses(outputs).sum()
        return _gradients(total, {name: points[name] for name in self.blocks})

    def _rest(self, block: str, replace: Mapping[str, "Replace"]) -> Any:
        through = None
        if not self.full:
            through = Replayer(self._calls, self._modules[block], self._ends[block])
        modules = {name: self._modules[name] for name in replace}
        return run(self.model, self.inputs, modules, replace, through)


Replace: TypeAlias = Callable[[Tensor], Tensor | None]


def run(
    model: nn.Module,
    inputs: Any,
    blocks: Mapping[str, nn.Module],
    replace: Mapping[str, Replace],
    through: Callable[..., Any] | None = None,
) -> Any:
    """Call a model in eval mode; `replace` sees (and may change) the output of each block."""
    with ExitStack() as stack:
        stack.enter_context(_quietly(model))
        if through is not None:
            stack.enter_context(intercepting(model, through))
        for name, module in blocks.items():
            hook = _hook(replace[name])
            stack.enter_context(module.register_forward_hook(hook))
        if isinstance(inputs, dict):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, list | tuple) else model(inputs)


def _hook(replace: Replace) -> Callable[..., Tensor | None]:
    return lambda _module, _args, output: replace(output)


@contextmanager
def _quietly(model: nn.Module) -> Iterator[None]:
    """Eval mode, and the same random numbers in every pass, should the model draw any."""
    with evaluating(model), preserving_rng([device_of(model)]):
        torch.manual_seed(0)
        yield


def _gradients(total: Tensor, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not total.requires_grad:
        return {name: torch.zeros_like(point) for name, point in points.items()}
    found = torch.autograd.grad(total, list(points.values()), allow_unused=True)
    return {
        name: torch.zeros_like(point) if grad is None else grad.detach()
        for (name, point), grad in zip(points.items(), found, strict=True)
    }


def count_samples(inputs: Any) -> int:
    """How many samples there are in nested inputs."""
    return len(tree_leaves(inputs)[0])
