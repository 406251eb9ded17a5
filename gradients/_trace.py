import weakref
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Self

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
    check_scaler,
    default_names,
    explaining_second_pass,
)
from gradients._dataset import make_dataset
from gradients._recorders.activations import ActivationRecorder
from gradients._recorders.choose import choose_recorder
from gradients._recorders.graph import keep_compiled_buffers
from gradients._recorders.processes import settle_group
from gradients._recorders.shards import ShardRecorder
from gradients._rows import Journal
from gradients._update import Update
from resonance_toolkit import check_module, check_whole, provenance, unwrap


class Trace:
    """Records, while a model trains, how the gradients of its losses agree.

    `trace.backward(main, auxiliary)` stands where `(main + auxiliary).backward()` stood. What
    lands in `.grad` is the same, bit for bit. On the steps that are sampled, the gradient of the
    auxiliary loss costs one more backward pass, from the deepest layer that it is attached to
    down: `1 + 2 f / 3` training steps, if that is at the fraction f of the depth.

    Backward hooks of the user's own see that pass too (one that clips, clips each by itself).

    With `level="activation"` the gradients are those at the outputs of `layers`, the attachment
    points, at next to no cost: "auxiliary" is what enters there through the layer's own branches,
    "main" all that arrives from above (at the deepest point: the main loss's gradient alone).
    It is what remains of their sum, rounded as the activations are: in half precision, take
    `level="parameter"` where the auxiliary gradient is more than some ten times the main one.

    Args:
        model: Any module, wrapped (compiled, `DistributedDataParallel`, `fully_shard`) or not,
            but not tensor parallel: there each process has parts of gradients only.
            Compile it before the trace is made, and call it after: until the trace is closed or
            collected, torch compiles without donated buffers (`torch._functorch.config`), in the
            whole process, since it can run a compiled backward pass only once otherwise.
            A parameter that is replaced is followed; others than at first are refused.
        every: Sample every so many optimizer updates; the others cost nothing.
        level: Gradients with respect to "parameter" or "activation".
        layers: Names or patterns of layers, for the activation level.
        objectives: Names of the losses, in the order of `backward`; by default "main" and
            "auxiliary", numbered if there are several.
        scaler: A `torch.amp.GradScaler`: `backward` scales by it, and what is recorded is unscaled.
        separate: Differentiate the first loss by itself too, at the cost of one more pass,
            instead of taking the others away from the total. By default only where parameters
            are in half precision, or `fully_shard` casts them to it; not for activations. Worth it
            if the auxiliary gradient is far larger than the main one, since rounding is in
            proportion to the larger: 30 times under autocast, 100000 times in float32 (where it
            puts the cosine off by a few tenths of a per cent).
        group: Processes to average gradients over: "auto" for those of the wrapper, a
            `ProcessGroup`, or None for this process alone.

    Attributes:
        step: Optimizer updates made so far; set it when training resumes.

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
    ) -> None:
        check_module(model)
        check_group(group)
        check_scaler(scaler)
        self.every = check_whole("every", every)
        check_level(level, layers, separate)

        self.model = model
        self.level = level
        self.objectives = None if objectives is None else check_names(objectives)
        self.scaler = scaler
        self.group = group
        self.step = 0

        self._recorder = choose_recorder(model, layers, separate, _SampledWhileAlive(self))
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
                all micro-batches but the last: their gradients are added up before they are
                compared, as the optimizer sees them.

        If it raises amid the micro-batches of an update, that update is not recorded.

        Raises:
            ValueError: If the losses are not scalars, not as many as before, or not separable, or
                do not depend on the model, or were backpropagated before.
        """
        names = check_losses(losses, self.objectives)
        check_dependence(losses, names)
        self.objectives = names
        total = reduce(add, losses)
        scaled_total = total if self.scaler is None else self.scaler.scale(total)

        try:
            if self._is_sampled():
                # The single losses must be scaled as their sum is, whose backward pass begins
                # with the scale.
                one = torch.ones_like(total.detach())
                seed = one if self.scaler is None else self.scaler.scale(one)
                with explaining_second_pass():
                    self._begin(losses, seed, whole_update=update)
            with explaining_second_pass():
                scaled_total.backward()
            self._update.end()
        except BaseException:
            self._update.abandon(was_whole_update=update)
            raise

        if update:
            self.advance()

    def join(self, *losses: Tensor) -> Tensor:
        """Give the sum of the losses, for a framework that calls `backward` itself.

        Recording happens inside that call, whatever divides or scales the sum before it. Once per
        optimizer update, after its last backward pass, `advance` must follow.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones.

        Raises:
            ValueError: If the losses are not scalars, not as many as before, or constants; and for
                a `fully_shard` model. What only the backward pass shows, as losses that are not
                separable, is raised there.
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
        self._update.record_if_complete(self.step)
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
            objective over the parameters that the other reaches too, and `loss (step, objective)`.
            Inner products and squared norms add up over layers: see `regroup`.

            A layer is the module that owns the parameters, by its name in `named_modules()`; what
            the model itself owns (a class token, position embeddings) is the layer "".
        """
        objectives = self.objectives or default_names(2)
        attributes = provenance("gradients.Trace", self.model, every=self.every, level=self.level)
        return make_dataset(self._journal.rows(), self._recorder, objectives, attributes)

    def close(self) -> None:
        """Give back hooks of the activation level, and the setting for compiled models."""
        self._recorder.close()
        self._release_compiler()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_sampled(self) -> bool:
        return self.step % self.every == 0

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
