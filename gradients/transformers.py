"""A trace inside Hugging Face's `Trainer`; needs transformers."""

from typing import Any

import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradients._trace import Trace


class TraceCallback(TrainerCallback):
    """Closes a trace's record at each optimizer update of a `Trainer`.

    The losses are joined where they are made, in `compute_loss_func` or `compute_loss`, and
    `Trainer` calls `backward` as ever:

        trace = gradients.Trace(model, every=10)

        def loss(outputs, labels, num_items_in_batch):
            share = len(labels) / num_items_in_batch  # 1 without gradient accumulation
            main = cross_entropy(outputs.logits, labels)
            return trace.join(main * share, probe.loss(labels) * share)

        Trainer(model, args, compute_loss_func=loss, callbacks=[TraceCallback(trace)])

    Args:
        trace: Of the model that is trained. Gradient accumulation, mixed precision and data
            parallel training are followed; `fully_shard` needs `Trace.backward`. Loss scaling
            (`fp16=True`) is for accelerators only there: read off the optimizer, not tested.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def __repr__(self) -> str:
        return f"TraceCallback({self.trace!r})"

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Take over what `Trainer` has set up."""
        self.trace.step = state.global_step
        self.trace.scaler = getattr(kwargs.get("optimizer"), "scaler", None) or self.trace.scaler

        # The wrapper is not there yet when the trace is made, so that it cannot tell the group.
        if self.trace.group == "auto" and args.world_size > 1:
            self.trace.group = dist.group.WORLD

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Close the record of an update: all its backward passes have been made."""
        self.trace.advance()
