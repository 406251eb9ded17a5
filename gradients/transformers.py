"""A trace inside Hugging Face's `Trainer`; needs transformers."""

from pathlib import Path
from typing import Any

import torch.distributed as dist

from gradients._like_trace import LikeTrace
from resonance_toolkit import (
    load_tensors,
    missing_extra,
    tensor_writer,
    warn_user,
    write_atomically,
)

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ModuleNotFoundError as error:
    raise missing_extra("gradients.transformers", "transformers") from error


class TraceCallback(TrainerCallback):
    """Completes a trace's record at each optimizer update of a `Trainer`, and saves it.

    Join the losses where they are computed, in `compute_loss_func` or `compute_loss`. `Trainer`
    calls `backward` as usual. It also asks for the loss in evaluation, where there is only the main
    one:

        trace = gradients.Trace(model, every=10)

        def loss(outputs, labels, num_items_in_batch):
            share = len(labels) / num_items_in_batch  # 1 without gradient accumulation
            main = cross_entropy(outputs.logits, labels) * share
            if not model.training:
                return main
            return trace.join(main, auxiliary(outputs, labels) * share)

        Trainer(model, args, compute_loss_func=loss, callbacks=[TraceCallback(trace)])

    For a probe, use `probes.transformers.ProbeTrainer`, which computes the losses itself, puts the
    branches into the optimizer, and takes `trace.join` as an argument of its callback:

        callbacks = [ProbeCallback(probe, join=trace.join), TraceCallback(trace)]
        ProbeTrainer(model, args, callbacks=callbacks)

    A training that resumes finds the earlier record in its checkpoint, in the folder that `Trainer`
    saves to.

    Args:
        trace: The trace of the model that is trained, or a `resonance.Monitor`. Gradient
            accumulation, mixed precision and data parallel training are supported; `fully_shard`
            needs `Trace.backward`. Loss scaling (`fp16=True`), which `Trainer` offers on
            accelerators only, is read from the optimizer, and was not tested.
        name: Name of the trace's file in a checkpoint; by default `trace_` and the trace's level.
            Give one if there are several traces of the same level.
    """

    def __init__(self, trace: LikeTrace, *, name: str | None = None) -> None:
        self.trace = trace
        self.name = trace.checkpoint_name if name is None else name

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
        # Of the same step already: the user has loaded it.
        if state.global_step > 0 and self.trace.step != state.global_step:
            self._load(_checkpoint_folder(args, state))
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

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Put the record so far beside the state of `Trainer`."""
        # Trials of a search for hyperparameters have folders of their own, and are not resumed.
        if state.is_world_process_zero and not state.is_hyper_param_search:
            path = _checkpoint_folder(args, state) / f"{self.name}.pt"
            write_atomically({path: tensor_writer(self.trace.state_dict())})

    def _load(self, folder: Path) -> None:
        # `Trainer` does not tell callbacks which checkpoint it resumes from: it may lie elsewhere.
        path = folder / f"{self.name}.pt"
        if path.is_file():
            self.trace.load_state_dict(load_tensors(path))
        else:
            warn_user(
                f"TraceCallback: no earlier record in {str(path)!r}, so this one begins at the "
                "resumed step; if the checkpoint lies elsewhere, load its record before train(): "
                f"trace.load_state_dict(torch.load('<checkpoint>/{path.name}'))"
            )


def _checkpoint_folder(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
