"""A probe inside Hugging Face's `Trainer`; needs transformers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probes._branches.probe import Probe
from probes._model.add_to_optimizer import add_to_optimizer
from resonance_toolkit import (
    IGNORED_TARGET,
    devices_of,
    evaluating,
    load_tensors,
    missing_extra,
    predicts_next_token,
    preserving_rng,
    shift_labels,
    tensor_writer,
    unwrap,
    write_atomically,
)

try:
    from transformers import (
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import get_last_checkpoint
except ModuleNotFoundError as error:
    raise missing_extra("probes.transformers", "transformers") from error

Join = Callable[[Tensor, Tensor], Tensor]
Targets = Callable[[Mapping[str, Any]], Tensor]

# The probe's file in a checkpoint of `Trainer`'s.
_FILE_NAME = "probe.pt"


class ProbeCallback(TrainerCallback):
    """Connects a probe to a `ProbeTrainer`, and saves the probe in the checkpoints.

    Use `ProbeTrainer` in place of `Trainer`:

        probe = probes.attach(model, "*.layer.*")
        trainer = ProbeTrainer(model, args, callbacks=[ProbeCallback(probe)], ...)
        trainer.train()

    To record a trace of the gradients as well:

        trace = gradients.Trace(model, every=10)
        callbacks = [ProbeCallback(probe, join=trace.join), TraceCallback(trace)]

    Args:
        probe: A probe attached to the model that is trained.
        join: Maps the main and the auxiliary loss to the loss that is trained on; by default their
            sum.
        targets: Maps a batch to the probe's targets. By default, these are the batch's `labels`;
            in a causal language model, the target of a position is the label after it, as in the
            model's own loss. Targets from a function of yours are never shifted.
    """

    def __init__(
        self, probe: Probe, *, join: Join | None = None, targets: Targets | None = None
    ) -> None:
        if not isinstance(probe, Probe):
            raise TypeError(
                f"`probe`: expected what probes.attach returned, got {type(probe).__name__}"
                "; the loss of Exits is the whole objective: give it as compute_loss_func"
            )
        self.probe = probe
        self.join: Join = torch.add if join is None else join
        self.targets = targets
        self.is_in_probe_trainer = False

        self._auxiliary_losses: list[Tensor] = []  # of the micro-batches since the latest log

    def __repr__(self) -> str:
        layers = ", ".join(self.probe.layers)
        return f"ProbeCallback({layers}; step={self.probe.step})"

    def load(self, checkpoint: str | Path) -> None:
        """Go on from a checkpoint's probe.

        Raises:
            ValueError: If the checkpoint has none.
        """
        path = Path(checkpoint) / _FILE_NAME
        if not path.is_file():
            raise ValueError(
                f"`resume_from_checkpoint`: expected {_FILE_NAME!r} in {str(checkpoint)!r}, got a "
                "checkpoint of a training without a probe"
            )
        self.probe.load_state_dict(load_tensors(path))

    def note(self, auxiliary_loss: Tensor) -> None:
        """Keep the auxiliary loss of one micro-batch for the next log."""
        self._auxiliary_losses.append(auxiliary_loss.detach())

    def take_mean_loss(self) -> float | None:
        """Return the mean of the losses noted since the last call; None if there are none."""
        if not self._auxiliary_losses:
            return None
        mean_loss = torch.stack(self._auxiliary_losses).mean().item()
        self._auxiliary_losses.clear()
        return mean_loss

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Refuse a trainer that would leave the probe untrained."""
        if not self.is_in_probe_trainer:
            raise RuntimeError(
                "ProbeCallback: expected a probes.transformers.ProbeTrainer, which adds the "
                "auxiliary loss, got another trainer; use ProbeTrainer, or derive from it and "
                "from your own: class MyTrainer(ProbeTrainer, OtherTrainer)"
            )
        self.probe.zero_grad()
        self._auxiliary_losses.clear()

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Clip the branches' gradients by themselves: `Trainer` clips the model's only."""
        if args.max_grad_norm is not None and args.max_grad_norm > 0:
            nn.utils.clip_grad_norm_(self.probe.parameters(), args.max_grad_norm)

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Clear the branches' gradients: `Trainer` clears the model's only."""
        self.probe.zero_grad()

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Put the probe's state beside that of `Trainer`."""
        # Trials of a search for hyperparameters have folders of their own, and are not resumed.
        if state.is_world_process_zero and not state.is_hyper_param_search:
            folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            write_atomically({folder / _FILE_NAME: tensor_writer(self.probe.state_dict())})


class ProbeTrainer(Trainer):
    """A `Trainer` that also trains a probe; it needs a `ProbeCallback` among its callbacks.

    The auxiliary loss is added in training only; evaluation and prediction are those of `Trainer`.
    With gradient accumulation, the auxiliary loss is weighted like the main one. Branches join the
    optimizer's first group (the one with weight decay). A resumed training continues with the
    branches of the checkpoint, but `load_best_model_at_end` loads the model alone. What `Trainer`
    logs as `loss` is the sum; `auxiliary_loss`, the mean over the micro-batches since the last log,
    is logged as well.

    To use it with another trainer that calls `compute_loss`, derive from both:
    `class MyTrainer(ProbeTrainer, OtherTrainer)`.
    """

    # Whether the main loss is divided by the items of the whole update; None until it is known.
    _divides_by_items: bool | None = None

    # Weights that `Trainer` did not find in the checkpoint it resumes from.
    _missing_weights: Sequence[str] = ()

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, or resume a training, as `Trainer` does."""
        callback = self._probe_callback()
        callback.is_in_probe_trainer = True
        self._divides_by_items = None

        # `Trainer` tells its callbacks of no checkpoint; one that is missing it refuses itself.
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(str(self.args.output_dir))
        if checkpoint:
            callback.load(checkpoint)

        return super().train(resume_from_checkpoint, *args, **kwargs)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Make the optimizer, of the branches too."""
        optimizer = super().create_optimizer(*args, **kwargs)
        probe = self._probe_callback().probe

        # Before the optimizer's own state is loaded, which goes where the parameters are.
        if self.place_model_on_device:
            probe.to(self.args.device)
        add_to_optimizer(optimizer, probe)
        return optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Join the main loss with the auxiliary one; in eval mode it is the main one alone."""
        if not (model.training and torch.is_grad_enabled()):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

        callback = self._probe_callback()
        labels = self._labels(inputs)
        targets = labels if callback.targets is None else callback.targets(inputs)
        if targets is None:
            names = ", ".join(inputs)
            raise ValueError(
                f"`labels`: expected targets in the batch, got {names}; give ProbeCallback "
                "targets=lambda batch: ..."
            )
        if self._divides_by_items is None:
            self._divides_by_items = self._ask_for_division(model, inputs, num_items_in_batch)

        # Some losses take the labels out of the batch: it is not looked at any more after this.
        main_loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)

        share = self._share(labels, num_items_in_batch)
        # An adaptive strength compares means with means.
        options = {"main": main_loss / share} if callback.probe.adaptive else {}
        auxiliary_loss = callback.probe.loss(targets, shift=False, **options)
        callback.note(auxiliary_loss)

        loss = callback.join(main_loss, auxiliary_loss * share)
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the auxiliary loss beside the sum."""
        if "loss" in logs:
            mean_loss = self._probe_callback().take_mean_loss()
            if mean_loss is not None:
                logs = {**logs, "auxiliary_loss": mean_loss}
        super().log(logs, *args, **kwargs)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load the weights of a checkpoint; those saved under older names, too.

        Some models (ViT) are saved under the names that their weights once had. `Trainer` does not
        find those again, and would go on from the weights it has; `from_pretrained` does.
        """
        self._missing_weights = []
        super()._load_from_checkpoint(resume_from_checkpoint, model)

        inner_model = unwrap(self.model if model is None else model)  # type: ignore[arg-type]  # set
        if self._missing_weights and isinstance(inner_model, PreTrainedModel):
            with preserving_rng([self.args.device]):
                loaded = type(inner_model).from_pretrained(
                    resume_from_checkpoint, config=inner_model.config, dtype=inner_model.dtype
                )
            inner_model.load_state_dict(loaded.state_dict())

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        self._missing_weights = list(load_result.missing_keys)
        super()._issue_warnings_after_load(load_result)

    def _probe_callback(self) -> ProbeCallback:
        callbacks = [
            callback
            for callback in self.callback_handler.callbacks
            if isinstance(callback, ProbeCallback)
        ]
        if len(callbacks) != 1:
            raise ValueError(f"`callbacks`: expected one ProbeCallback, got {len(callbacks)}")
        return callbacks[0]

    def _labels(self, inputs: Mapping[str, Any]) -> Tensor | None:
        """The labels of a batch, each at the position that predicts it."""
        # Of collators that shift the labels themselves.
        shifted: Tensor | None = inputs.get("shift_labels")
        if shifted is not None:
            return shifted

        labels: Tensor | None = inputs.get("labels")
        if labels is None:
            return None
        assert self.model is not None
        return shift_labels(labels) if predicts_next_token(self.model) else labels

    def _ask_for_division(
        self, model: nn.Module, inputs: dict[str, Any], n_items: Tensor | int | None
    ) -> bool:
        """Tell whether the main loss is a sum over the batch, divided by the items of an update.

        `Trainer` gives that number to every model that takes further keywords, but some of them
        leave it aside and return the mean over the batch. So the loss is asked, once, with the
        number and with twice the number.
        """
        if n_items is None:
            return False

        losses = []
        with evaluating(model), preserving_rng(devices_of(model)), torch.no_grad():
            for factor in (1, 2):
                loss: Any = super().compute_loss(model, dict(inputs), False, factor * n_items)
                losses.append(abs(float(loss)))

        # Halved, but for parts that are not divided, such as a router's loss.
        return losses[1] < 0.75 * losses[0]

    def _share(self, labels: Tensor | None, n_items: Any) -> Any:
        """What the main loss, a mean over a micro-batch, is multiplied by in its update."""
        factor = self._factor_of_processes() if n_items is not None else 1
        if not self._divides_by_items:
            return float(factor)
        assert labels is not None  # otherwise there are no items to count
        return (labels != IGNORED_TARGET).sum() * factor / n_items

    def _factor_of_processes(self) -> int:
        """What `Trainer` multiplies a loss by, which it takes to be divided by all items.

        It does so for every model that takes further keywords, also if that returns a mean.
        """
        takes_items = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not self.args.average_tokens_across_devices or not takes_items:
            return 1
        n_gpus = int(self.args.n_gpu)
        n_processes = int(self.accelerator.num_processes)
        return n_gpus if n_gpus > 1 else n_processes // int(self.get_tp_size())
