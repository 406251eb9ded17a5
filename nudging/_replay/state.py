from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from nudging._replay.losses import evaluate_loss
from nudging._replay.padding import find_positions
from nudging._replay.replay import Recorder, Replayer, copy_tensors, intercepting
from nudging._replay.run import OutputHook, run
from nudging._replay.setup import Setup
from resonance_toolkit import Loss, evaluating


@dataclass(frozen=True, eq=False, repr=False)
class State:
    """A recorded forward pass of one batch, from which credits are computed.

    Made by `observe`. A block is a named module whose output is a tensor, samples first. If it
    returns a tuple or a list, its first tensor is used.

    Attributes:
        model: The model; a credit must not change it.
        blocks: Names, in the order in which the blocks ran.
        inputs: What the model was called with.
        targets: What the loss compares with.
        hidden: Each block's output, detached, in the order of `blocks`.
        outputs: What the model returned, detached.
        loss: A function of `(outputs, targets)` that returns one loss per sample, `(sample,)`.
        first_sample: Index of the first sample in the data, if this is one batch of several.
        full_pass_reason: Why a change of one block needs a pass through the whole model; empty if
            computing what follows the block is enough.
    """

    model: nn.Module
    blocks: tuple[str, ...]
    inputs: Any
    targets: Any
    hidden: dict[str, Tensor]
    outputs: Any
    loss: Loss
    first_sample: int
    full_pass_reason: str
    _setup: Setup
    _recorder: Recorder
    _overwrites_inputs: bool

    def __len__(self) -> int:
        return len(next(iter(self.hidden.values())))

    def __repr__(self) -> str:
        return f"State({type(self.model).__name__}, {len(self)} samples, {', '.join(self.blocks)})"

    def losses(self, outputs: Any = None) -> Tensor:
        """The loss of each sample, `(sample,)`.

        Args:
            outputs: Such as `replay` returns; by default those of the model as it was observed.
        """
        chosen_outputs = self.outputs if outputs is None else outputs
        return evaluate_loss(self.loss, chosen_outputs, self.targets, len(self))

    def positions(self, block: str) -> Tensor | None:
        """True where a position of a block's output is not padding, `(sample, position)`.

        None if all positions count: because there is no padding mask among the inputs, or because
        the block's output has other positions. Credits for padding are ignored.

        Args:
            block: One of `blocks`.
        """
        self._check_block(block)
        return self._positions[block]

    def replay(self, block: str, value: Tensor) -> Any:
        """Compute the model's output with a block's output replaced, running only what follows.

        Args:
            block: One of `blocks`.
            value: A tensor shaped like `hidden[block]`. The result can be differentiated with
                respect to it.

        Raises:
            ValueError: If there is no such block, or the value has another shape.
        """
        self._check_block(block)
        if value.shape != self.hidden[block].shape:
            expected_shape = tuple(self.hidden[block].shape)
            raise ValueError(f"`value`: expected {expected_shape}, got {tuple(value.shape)}")

        # A copy, since what follows may write into it.
        return self._run({block: lambda _output: value.clone()}, changed_block=block)

    def gradient(self) -> dict[str, Tensor]:
        """Return, by block, the gradient of each sample's loss (of their sum, so without 1/N).

        It is computed once, in one backward pass. It is zero if the loss does not depend on the
        block.
        """
        return {name: gradient.clone() for name, gradient in self._gradient.items()}

    @torch.inference_mode(False)
    def differentiate(
        self, total: Callable[[Any], Tensor], *, whole: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradient of a scalar with respect to every block's output, in one pass.

        Args:
            total: A function of the model's outputs that returns the scalar.
            whole: Run the whole model, so that all hooks run.

        Raises:
            ValueError: If the scalar is not one number that depends on the blocks.
        """
        first_block = self.blocks[0]
        points: dict[str, Tensor] = {}  # with respect to which is differentiated
        passed_on: dict[str, Tensor] = {}  # copies of them, which go into what follows

        def track(name: str, output: Tensor | None) -> Tensor | None:
            assert output is not None  # checked when the pass was recorded

            # In a pass through the whole model this is called before and after the other hooks of
            # a block. If those only looked at our tensor, it is tracked already.
            if output is passed_on.get(name) and not output._version:
                return None

            is_recorded = name == first_block and not whole
            point = self.hidden[name] if is_recorded else output
            points[name] = point if point.requires_grad else point.detach().requires_grad_()

            # What follows may write into it, and a leaf must not be written into.
            passed_on[name] = points[name].clone()
            return passed_on[name]

        trackers = {name: partial(track, name) for name in self.blocks}
        with torch.enable_grad():
            value = total(self._run(trackers, changed_block=None if whole else first_block))

        if value.dim() or not value.requires_grad:
            actual = tuple(value.shape) if value.dim() else "none that needs a gradient"
            raise ValueError(
                f"expected a loss that is one number and depends on the blocks, got {actual}"
            )

        # In eval mode: where activations were dropped, parts of the model run again now.
        with evaluating(self.model):
            ordered_points = [points[name] for name in self.blocks]
            gradients = torch.autograd.grad(value, ordered_points, allow_unused=True)

        return {
            name: torch.zeros_like(points[name]) if gradient is None else gradient
            for name, gradient in zip(self.blocks, gradients, strict=True)
        }

    def _check_block(self, block: str) -> None:
        if block not in self.hidden:
            raise ValueError(f"`block`: expected one of {', '.join(self.blocks)}, got {block!r}")

    @cached_property
    def _positions(self) -> dict[str, Tensor | None]:
        return {
            name: find_positions(self.model, self.inputs, self.targets, name, hidden)
            for name, hidden in self.hidden.items()
        }

    @cached_property
    def _gradient(self) -> dict[str, Tensor]:
        return self.differentiate(lambda outputs: self.losses(outputs).sum())

    def _run(self, output_hooks: Mapping[str, OutputHook], *, changed_block: str | None) -> Any:
        """Run what follows `changed_block`, or the whole model if it is None."""
        interception: AbstractContextManager[None] | None = None
        if changed_block is not None and not self.full_pass_reason:
            replayer = Replayer(self._recorder, self._setup.modules[changed_block])
            interception = intercepting(self._recorder.watched, replayer)

        return run(
            self._setup,
            copy_tensors(self.inputs) if self._overwrites_inputs else self.inputs,
            {self._setup.modules[name]: hook for name, hook in output_hooks.items()},
            interception=interception,
            hooks_also_first=changed_block is None,
        )
