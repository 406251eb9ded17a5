from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from nudging._replay.losses import Loss, losses_of
from nudging._replay.replay import Recorder, Replayer, Through, copied, intercepting
from nudging._replay.run import uncheckpointed
from resonance_toolkit import device_of, evaluating, preserving_rng

Replace = Callable[[Tensor], Tensor | None]


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
        first: Place of the first sample in the data, where this is one batch of several.
        full: Why a change of one block needs a full pass; empty if what follows is enough.
    """

    model: nn.Module
    blocks: tuple[str, ...]
    inputs: Any
    targets: Any
    hidden: dict[str, Tensor]
    outputs: Any
    loss: Loss
    first: int
    full: str
    _modules: Mapping[str, nn.Module]
    _record: Recorder
    _tensors: dict[str, Tensor] | None  # to run on, instead of the model's own
    _spoils_inputs: bool

    def __len__(self) -> int:
        return len(next(iter(self.hidden.values())))

    def __repr__(self) -> str:
        return f"State({type(self.model).__name__}, {len(self)} samples, {', '.join(self.blocks)})"

    def losses(self, outputs: Any = None) -> Tensor:
        """The loss of each sample, `(sample,)`; of the model at rest unless outputs are given."""
        at = self.outputs if outputs is None else outputs
        return losses_of(self.loss, at, self.targets, len(self))

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
        # A copy, since what follows may write into it.
        return self._pass({block: lambda _: value.clone()}, after=block)

    def gradient(self) -> dict[str, Tensor]:
        """By block, the gradient of each sample's loss (of their sum, so without 1/N).

        Made in one backward pass, and only once. Zero where a block does not reach the loss.
        """
        return {name: value.clone() for name, value in self._gradient.items()}

    @torch.inference_mode(False)
    def differentiate(
        self, total: Callable[[Any], Tensor], *, whole: bool = False
    ) -> dict[str, Tensor]:
        """The gradient of a scalar with respect to every block's output, in one backward pass.

        Args:
            total: What to differentiate, made of the model's outputs.
            whole: Run all of the model, so that hooks in any place see the pass.
        """
        points, given = dict[str, Tensor](), dict[str, Tensor]()
        first = self.blocks[0]

        def hold(name: str, output: Tensor) -> Tensor | None:
            if output is given.get(name) and not output._version:
                return None  # hooks in between only looked at it
            point = self.hidden[name] if name == first and not whole else output
            points[name] = point if point.requires_grad else point.detach().requires_grad_()
            given[name] = points[name].clone()  # what follows may write into it
            return given[name]

        holders = {name: lambda output, name=name: hold(name, output) for name in self.blocks}
        with torch.enable_grad():
            value = total(self._pass(holders, after=None if whole else first, early=whole))
        if value.dim() or not value.requires_grad:
            raise ValueError(
                "expected a loss that is one number and depends on the blocks, got "
                f"{'none that needs a gradient' if not value.dim() else tuple(value.shape)}"
            )
        with evaluating(self.model):  # where activations were dropped, the model runs again
            found = torch.autograd.grad(value, [points[n] for n in self.blocks], allow_unused=True)
        return {
            name: torch.zeros_like(points[name]) if grad is None else grad
            for name, grad in zip(self.blocks, found, strict=True)
        }

    @cached_property
    def _gradient(self) -> dict[str, Tensor]:
        return self.differentiate(lambda outputs: self.losses(outputs).sum())

    def _pass(
        self, replace: Mapping[str, Replace], *, after: str | None, early: bool = False
    ) -> Any:
        modules = {name: self._modules[name] for name in replace}
        through: Through | None = None
        if after is not None and not self.full:
            through = Replayer(self._record, self._modules[after])
        inputs = copied(self.inputs) if self._spoils_inputs else self.inputs
        return run(
            self.model, inputs, modules, replace, self._record.watched, through,
            self._tensors, early=early,
        )  # fmt: skip


def run(
    model: nn.Module,
    inputs: Any,
    blocks: Mapping[str, nn.Module],
    replace: Mapping[str, Replace],
    watched: list[nn.Module],
    through: Through | None,
    tensors: dict[str, Tensor] | None,
    *,
    early: bool = False,
) -> Any:
    """Call a model in eval mode; `replace` sees, and may change, the output of each block.

    Should the model draw random numbers, they are the same in every pass. `early` calls `replace`
    before other hooks of a block, too.
    """
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(uncheckpointed(model))
        stack.enter_context(preserving_rng([device_of(model)]))
        if any(_is_compiled(module) for module in model.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        _seed(device_of(model))
        if through is not None:
            stack.enter_context(intercepting(watched, through))
        for name, module in blocks.items():
            for prepend in {early, False}:
                hook = module.register_forward_hook(_hook(replace[name]), prepend=prepend)
                stack.enter_context(hook)
        named = inputs if isinstance(inputs, dict) else {}
        listed = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
        args = () if named else listed
        # Every pass finds the buffers as they were, and what it writes goes to copies.
        own = {**dict(model.named_buffers()), **(tensors or {})}
        copies = {name: own[name].clone() for name, _ in model.named_buffers()}
        return functional_call(model, {**(tensors or {}), **copies}, args, named)


def count_samples(inputs: Any) -> int:
    """How many samples there are in nested inputs."""
    return len(tree_leaves(inputs)[0])


def _seed(device: torch.device) -> None:
    # Not `torch.manual_seed`, which is slow, and seeds devices that nobody asked about.
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(0)


def _is_compiled(module: nn.Module) -> bool:
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ == "OptimizedModule"


def _hook(replace: Replace) -> Callable[..., Tensor | None]:
    return lambda _module, _args, output: replace(output)
