"""A trace inside Lightning's `Trainer`; needs lightning."""

from typing import Any

import torch.distributed as dist
from torch.optim import Optimizer

from gradients._like_trace import LikeTrace
from resonance_toolkit import missing_extra

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    raise missing_extra("gradients.lightning", "lightning") from error


class TraceCallback(Callback):
    """Completes a trace's record at each optimizer update, and saves it in Lightning's checkpoints.

    Join the losses in `training_step`. Lightning calls `backward` as usual:

        def training_step(self, batch, index):
            ...
            return self.trace.join(main, auxiliary)

        trainer = Trainer(callbacks=[TraceCallback(module.trace)])

    A training that resumes (`fit(..., ckpt_path=...)`) continues the record of its checkpoint.

    Args:
        trace: The trace of the module that is trained, or of a part of it; or a
            `resonance.Monitor`. Gradient accumulation, mixed precision and data parallel training
            are supported; `fully_shard` needs `Trace.backward`.
        name: Name of the trace in a checkpoint; by default `trace_` and the trace's level. Give one
            if there are several traces of the same level.
    """

    def __init__(self, trace: LikeTrace, *, name: str | None = None) -> None:
        self.trace = trace
        self.name = trace.checkpoint_name if name is None else name

    @property
    def state_key(self) -> str:
        """The name under which Lightning keeps the record."""
        return self.name

    def __repr__(self) -> str:
        return f"TraceCallback({self.trace!r})"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over what Lightning has set up."""
        self.trace.step = trainer.global_step
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.trace.scaler = scaler or self.trace.scaler

        # The wrapper is not there yet when the trace is made, so that it cannot tell the group.
        if self.trace.group == "auto" and trainer.world_size > 1:
            self.trace.group = dist.group.WORLD

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Close the record of an update: all its backward passes have been made."""
        self.trace.advance()

    def state_dict(self) -> dict[str, Any]:
        """Return the record so far, which Lightning puts into its checkpoints."""
        return self.trace.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the record of a checkpoint."""
        self.trace.load_state_dict(state_dict)
