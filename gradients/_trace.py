import weakref
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, Self

import torch
import xarray as xr
from torch import Tensor, nn

from gradients._checks import (
    Group,
    Level,
    check_dependence,
    check_group,
    check_level,
    check_losses,
    check_names,
    check_noise,
    check_scaler,
    default_names,
    explaining_second_pass,
)
from gradients._dataset import make_dataset, step_scalars
from gradients._record_file import RecordFile, RecordHeader
from gradients._recorders.activations import ActivationRecorder
from gradients._recorders.choose import choose_recorder
from gradients._recorders.graph import keep_compiled_buffers
from gradients._recorders.processes import settle_group
from gradients._recorders.shards import ShardRecorder
from gradients._rows import Journal, from_state, to_state
from gradients._update import Update
from resonance_toolkit import check_module, check_whole, provenance, unwrap


class Trace:
    """Records, while a model trains, how the gradients of its losses agree.

    Call `trace.backward(main, auxiliary)` instead of `(main + auxiliary).backward()`. The
    gradients in `.grad` are the same, bit for bit. On sampled steps, the gradient of the auxiliary
    loss costs one more backward pass, from the deepest layer that it is attached to down to the
    input. Such a step takes `1 + 2 f / 3` times as long as a plain one, if that layer is at the
    fraction f of the depth.

    Your own backward hooks run in that pass, too. (A hook that clips gradients then clips those of
    each loss separately.)

    With `level="activation"`, gradients are taken with respect to the outputs of `layers`, the
    attachment points, at next to no cost. "auxiliary" is the gradient that enters there through
    the layer's own branches, and "main" is everything that arrives from deeper layers (at the
    deepest point, the gradient of the main loss alone). "main" is computed as the total minus
    "auxiliary", with the rounding errors of the activations. In half precision, use
    `level="parameter"` if the auxiliary gradient is more than about ten times the main one.

    Args:
        model: Any module, wrapped (compiled, `DistributedDataParallel`, `fully_shard`) or not,
            but not tensor parallel, where each process has only parts of the gradients. If you
            compile it, compile it before you make the trace, and make its first call after that:
            until the trace is closed or garbage-collected, torch compiles without donated buffers
            (`torch._functorch.config`) in the whole process, because otherwise a compiled backward
            pass runs only once. You may replace parameters, but their names must stay the same.
        every: Sample every so many optimizer updates; the other updates cost nothing extra.
        level: Gradients with respect to "parameter" or "activation".
        layers: Names or patterns of layers, for the activation level.
        objectives: Names of the losses, in the order of `backward`; by default "main" and
            "auxiliary", numbered if there are several.
        scaler: A `torch.amp.GradScaler` that `backward` scales by; the record is unscaled.
        separate: Differentiate the first loss by itself, too, at the cost of one more pass,
            instead of subtracting the others from the total. By default, only if parameters are
            in half precision or `fully_shard` casts them to it, and never for activations. Use it
            if the auxiliary gradient is far larger than the main one, because rounding errors are
            in proportion to the larger one: 30 times larger under autocast, 100000 times in
            float32 (which makes an error of a few tenths of a percent in the cosine).
        group: Processes to average gradients over: "auto" for those of the wrapper, a
            `ProcessGroup`, or None for this process alone.
        noise: Also record the norms of the gradients of each micro-batch, for `noise_scale`. An
            update must have several micro-batches (`update=False`) or several processes. On
            sampled steps, the gradients of each micro-batch are read once more, which takes a few
            percent of the step, or more if micro-batches are small. Parameters must be whole in
            each process.
        path: A new file. Each row is written to it as soon as it is recorded, so that nothing
            is lost if the process is killed; `read_trace` reads it. Each sampled update then waits
            for the device. If there are several processes, the first one writes.

    Attributes:
        step: Optimizer updates made so far; set it when training resumes without `state_dict`.

    Raises:
        ValueError: If an argument does not fit, or the processes that share the model are unknown.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> trace = Trace(model)
        >>> out = model(torch.ones(1, 1)).sum()
        >>> trace.backward(3 * out, -2 * out)  # opposed: 3 and -2
        >>> model.weight.grad.item()
        1.0
        >>> trace.to_dataset()["cosine_total"].item()
        -1.0
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 1,
        *,
        level: Level = "parameter",
        layers: str | Sequence[str] | None = None,
        objectives: Sequence[str] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        separate: bool | None = None,
        group: Group = "auto",
        noise: bool = False,
        path: str | Path | None = None,
    ) -> None:
        check_module(model)
        check_group(group)
        check_scaler(scaler)
        self.every = check_whole("every", every)
        check_level(level, layers, separate)
        check_noise(noise)
        self._file = None if path is None else RecordFile(path)

        self.model = model
        self.level = level
        self.objectives = None if objectives is None else check_names(objectives)
        self.scaler = scaler
        self.group = group
        self.path = path
        self.step = 0

        self._recorder = choose_recorder(
            model, layers, separate, _SampledWhileAlive(self), noise=noise
        )
        self._journal = Journal(self._recorder.owners, len(self._recorder.layers))
        self._update = Update(self._recorder, self._journal)

        # A trace that is dropped without `close` leaves nothing behind either.
        if isinstance(self._recorder, ActivationRecorder):
            weakref.finalize(self, self._recorder.hooks.close)
        self._release_compiler = weakref.finalize(self, keep_compiled_buffers(model))

    def __repr__(self) -> str:
        model_name = type(unwrap(self.model)).__name__
        return (
            f"Trace({model_name}, every={self.every}, level={self.level!r}, step={self.step}, "
            f"n_recorded={len(self._journal)})"
        )

    def backward(self, *losses: Tensor, update: bool = True) -> None:
        """Backpropagate the sum of the losses, and record on the steps that are sampled.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones. One loss
                alone is recorded too, with its gradient norms.
            update: Whether an optimizer update follows. With gradient accumulation, pass False for
                all micro-batches but the last. Their gradients are summed before they are compared,
                as the optimizer sees them.

        If it raises an error between the micro-batches of an update, that update is not recorded.

        Raises:
            ValueError: If the losses are not scalars, are not as many as before, cannot be
                separated, do not depend on the model, or were backpropagated before.
        """
        names = check_losses(losses, self.objectives)
        total = reduce(add, losses)
        scaled_total = total if self.scaler is None else self.scaler.scale(total)

        try:
            if self._is_sampled():
                # The single losses must be scaled as their sum is, whose backward pass begins
                # with the scale.
                unit = torch.ones_like(total.detach())
                seed = unit if self.scaler is None else self.scaler.scale(unit)
                with explaining_second_pass():
                    self._begin(losses, seed, whole_update=update)

            # After what the recorder has to say: it knows more of the model than the losses tell.
            check_dependence(losses, names)
            self.objectives = names
            with explaining_second_pass():
                scaled_total.backward()
            self._update.end()
        except BaseException:
            self._update.abandon(was_whole_update=update)
            raise

        if update:
            self.advance()

    def join(self, *losses: Tensor) -> Tensor:
        """Return the sum of the losses, for a framework that calls `backward` itself.

        The gradients are recorded during that call, even if the framework divides or scales the sum
        first. Call `advance` once per optimizer update, after its last backward pass.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones.

        Raises:
            ValueError: If the losses are not scalars, are not as many as before, or are constants;
                or if the model is under `fully_shard`. Errors that only the backward pass shows,
                such as losses that cannot be separated, are raised there.
        """
        names = check_losses(losses, self.objectives)
        check_dependence(losses, names)
        self.objectives = names
        if isinstance(self._recorder, ShardRecorder):
            raise ValueError("`model`: a `fully_shard` model needs `backward` instead of `join`")

        # The hook runs when the framework's backward pass comes by the sum: what arrives there is
        # all that it multiplied the sum with.
        total = reduce(add, losses)
        if self._is_sampled() and total.requires_grad:
            total.register_hook(lambda seed: self._begin_joined(losses, seed))

        # The forward pass is over; layers that run again now are checkpointed ones.
        if isinstance(self._recorder, ActivationRecorder):
            self._recorder.pause()
        return total

    def advance(self) -> None:
        """Close the record of an update: all its backward passes have been made."""
        n_recorded = len(self._journal)
        self._update.record_if_complete(self.step)
        if self._file is not None and len(self._journal) > n_recorded:
            self._file.add_latest(self._header(), self._journal.rows())
        self.step += 1

    def to_dataset(self) -> xr.Dataset:
        """Return what was recorded so far.

        Returns:
            Dataset with `dot`, `norm_main`, `norm_aux`, `cosine (step, layer)`: inner product,
            norms and cosine of the two gradients over the parameters of the layer that both
            losses reach, NaN if there are none or the gradient overflowed; `cosine_total`,
            `conflict_share (step)`: over all layers, and the share of layers with a negative
            cosine; `loss_main`, `loss_aux (step)`; `gradient_norm (step)`: of the sum of the
            losses, over all parameters. With more than two losses: `inner_product`, `norm`,
            `cosine (step, layer, objective, other_objective)`, where `norm` is that of the
            objective over the parameters that the other one reaches, too, and `loss (step,
            objective)`.
            Inner products and squared norms may be summed over layers: see `regroup`.

            With `noise=True`, also `squared_norm (step, layer, objective)`, of the objective's
            gradient in the update; `micro_batch_squared_norm`, the mean of the same over its
            micro-batches, each scaled as if it were the whole update; and `n_micro_batches
            (step)`, of all processes.

            A layer is the module that owns the parameters, named as in `named_modules()`.
            Parameters of the model itself (a class token, position embeddings) are the layer "".
        """
        header = self._header()
        return make_dataset(self._journal.rows(), header, header.objectives, header.attributes)

    @property
    def checkpoint_name(self) -> str:
        """Default name of the record's file in a framework's checkpoint."""
        return f"trace_{self.level}"

    @property
    def latest(self) -> dict[str, float]:
        """The latest row as plain numbers to log, without values by layer; empty before the first.

        For example `step`, `loss_main`, `loss_aux`, `cosine_total`, `conflict_share` and
        `gradient_norm`. With more than two losses, names continue after a slash: `loss/main`,
        `cosine_total/main/auxiliary 1`. Reading it makes an accelerator wait.
        """
        rows = self._journal.rows()
        if not rows:
            return {}
        header = self._header()
        row = make_dataset(rows[-1:], header, header.objectives, header.attributes)
        return step_scalars(row)

    def state_dict(self) -> dict[str, Any]:
        """Return the record so far, for a checkpoint: tensors, strings and numbers only.

        It leaves out an update whose micro-batches are not yet complete.
        """
        return {
            "step": self.step,
            "level": self.level,
            "objectives": None if self.objectives is None else list(self.objectives),
            "layers": list(self._recorder.layers),
            "rows": to_state(self._journal.rows()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, so that the record is that of an uninterrupted training.

        The file at `path`, if there is one, is rewritten with the rows of the state. Rows of later
        updates, which will be trained again, are removed.

        Args:
            state: What `state_dict` returned, for a trace with the same layers and losses.

        Raises:
            ValueError: If the state is that of another trace.
        """
        own_layers = list(self._recorder.layers)
        for name, expected, actual in (
            ("level", self.level, state["level"]),
            ("layers", own_layers, list(state["layers"])),
        ):
            if actual != expected:
                raise ValueError(
                    f"`state`: expected the {name} of this trace, {expected}, got {actual}"
                )

        saved_objectives = state["objectives"]
        if saved_objectives is not None:
            names = check_names(saved_objectives)
            if self.objectives not in (None, names):
                raise ValueError(f"`state`: expected the objectives {self.objectives}, got {names}")
            self.objectives = names

        self.step = int(state["step"])
        self._journal.replace(from_state(state["rows"]))
        self._update.forget()
        if self._file is not None:
            self._file.replace_rows(self._header(), self._journal.rows())

    def close(self) -> None:
        """Remove the hooks of the activation level, and restore the setting for compiled models."""
        self._recorder.close()
        self._release_compiler()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_sampled(self) -> bool:
        return self.step % self.every == 0

    def _header(self) -> RecordHeader:
        attributes = provenance("gradients.Trace", self.model, every=self.every, level=self.level)
        return RecordHeader(
            objectives=list(self.objectives or default_names(2)),
            layers=list(self._recorder.layers),
            sizes=self._recorder.sizes,
            attributes=attributes,
        )

    def _begin(self, losses: Sequence[Tensor], seed: Tensor, *, whole_update: bool) -> None:
        # Not before the first backward pass: processes are often started after the trace is made.
        settle_group(self._recorder, self.model, self.group)
        self._update.begin(losses, seed, self.scaler, whole_update=whole_update)

    def _begin_joined(self, losses: Sequence[Tensor], seed: Tensor) -> None:
        self._begin(losses, seed, whole_update=False)
        # Called at the end of this very backward pass, and not if it raises.
        torch.autograd.Variable._execution_engine.queue_callback(self._update.end)


class _SampledWhileAlive:
    """Tells whether a trace samples its present step; False once the trace is gone.

    The hooks of a recorder ask it, and must not keep the trace alive.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = weakref.ref(trace)

    def __call__(self) -> bool:
        trace = self._trace()
        return trace is not None and trace._is_sampled()
