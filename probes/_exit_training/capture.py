"""What the early exits keep of a forward pass, and the guard they run the model's modules under."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from probes._exit_training.targets import exit_logits
from probes._model.capture import Capture, Hook
from probes._model.never_compiled import never_compiled
from probes._model.pass_state import PassState


@dataclass
class ExitCapture(Capture):
    """A capture that also has the model's output, and knows in which version it was kept."""

    output: Any = None
    version: int | None = None

    def use(self) -> None:
        """Let go of everything: logits are large."""
        self.features = {}
        self.edges = {}
        self.output = None
        self.input_ids = None
        self.state = PassState.USED

    def logits(self) -> Tensor:
        """Return the model's own logits.

        Raises:
            RuntimeError: If they were changed in place since.
        """
        logits = exit_logits(self.output)
        if self.version is not None and logits._version != self.version:
            raise RuntimeError(
                "the model's output was changed in place after the forward pass: take the loss "
                "before, or change a copy"
            )
        return logits


class OutputHook(Hook):
    """After the model's forward: keep its output, which is not copied for its size."""

    # Called by itself after the compiled forward, so nothing is lost.
    @never_compiled
    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if not isinstance(capture, ExitCapture) or capture.state is not PassState.RUNNING:
            return

        capture.output = output
        capture.version = None
        with suppress(ValueError):  # no logits: the loss will say so, the pass itself is fine
            capture.version = exit_logits(output)._version


def keep_everything(x: Tensor) -> Tensor:
    """Pool nothing: an exit's head needs its layer's output as it is."""
    return x


@contextmanager
def keeping_running_statistics(root: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Let the batch norms in some of a model's modules use a batch without noting it.

    Their running statistics are those of the model's own pass, on which its inference rests.
    """
    modules = (module for name in names for module in root.get_submodule(name).modules())
    batch_norms = [
        module
        for module in modules
        if isinstance(module, _BatchNorm) and module.track_running_stats
    ]

    try:
        for batch_norm in batch_norms:
            batch_norm.track_running_stats = False
        yield
    finally:
        for batch_norm in batch_norms:
            batch_norm.track_running_stats = True
