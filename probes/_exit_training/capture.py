"""Hooks that keep what the early exits see, and the model's own logits."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import logits_of
from probes._model.capture import Capture, Hook
from probes._model.pass_state import PassState


@dataclass
class ExitCapture(Capture):
    """A capture that also has the model's output, and knows in which version it was kept."""

    output: Any = None
    version: int | None = None

    def use(self) -> None:
        """Let go of everything: logits are large."""
        self.features, self.edges, self.output, self.state = {}, {}, None, PassState.USED

    def logits(self) -> Tensor:
        """The model's own logits.

        Raises:
            RuntimeError: If they were changed in place since.
        """
        logits = logits_of(self.output)
        if self.version is not None and logits._version != self.version:
            raise RuntimeError(
                "the model's output was changed in place after the forward pass: take the loss "
                "before, or change a copy"
            )
        return logits


def whole(x: Tensor) -> Tensor:
    """What an exit keeps of its layer's output: all."""
    return x


class OutputHook(Hook):
    """After the model's forward: keep its output, which is not copied for its size."""

    # Called by itself after the compiled forward, so nothing is lost.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if not isinstance(capture, ExitCapture) or capture.state is not PassState.RUNNING:
            return
        capture.output, capture.version = output, None
        with suppress(ValueError):  # no logits: the loss will say so, the pass itself is fine
            capture.version = logits_of(output)._version
