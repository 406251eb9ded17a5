from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import add
from typing import Any, Literal

import torch
import xarray as xr
from torch import Tensor, nn

from gradients._dataset import make_dataset
from gradients._parameter_recorder import Measurement, ParameterRecorder
from gradients._processes import find_group, mean_over
from gradients._row import Row, make_row
from resonance import device_of, provenance

_KEPT_ON_DEVICE = 32


class Trace:
    """Records, while a model trains, how the gradients of its losses agree.

    `trace.backward(main, auxiliary)` stands where `(main + auxiliary).backward()` stood. What
    lands in `.grad` is the same, bit for bit; on the steps that are sampled, the gradient of the
    auxiliary loss costs one more backward pass, from the deepest layer that it is attached to down.

    Args:
        model: Any module, wrapped (compiled, `DistributedDataParallel`, `fully_shard`) or not.
        every: Sample every so many optimizer updates; the others cost nothing.
        objectives: Names of the losses, in the order of `backward`. By default "main" and
            "auxiliary", numbered if there are several.
        scaler: A `torch.amp.GradScaler`: `backward` scales by it, and what is recorded is unscaled.
        separate: Differentiate the first loss by itself too, at the cost of one more pass,
            instead of taking the others away from the total. By default only where parameters
            are in half precision. Worth it under autocast if the auxiliary gradient is more than
            some 30 times larger than the main one, since rounding is in proportion to the larger.
        group: Processes to average gradients over: by default those of the wrapper.

    Attributes:
        step: Optimizer updates made so far; set it when training resumes.

    Raises:
        ValueError: If an argument does not fit.

    Example:
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
        objectives: Sequence[str] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        separate: bool | None = None,
        group: Any = "auto",
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"`every`: expected a whole number of at least 1, got {every!r}")
        self.model, self.every, self.scaler = model, every, scaler
        self.objectives = None if objectives is None else _names(objectives)
        self.step = 0
        self._group = find_group(model, group)
        self._recorder = ParameterRecorder(model, self._group, separate)
        self._losses: Tensor | None = None
        self._scale: Tensor = torch.ones((), dtype=torch.float64)
        self._pending: list[tuple[int, Tensor, Tensor, Measurement]] = []
        self._rows: list[Row] = []

    def backward(self, *losses: Tensor, update: bool = True) -> None:
        """Backpropagate the sum of the losses, and record on the steps that are sampled.

        Args:
            losses: Scalars of one forward pass: the main loss, then the auxiliary ones.
            update: Whether an optimizer update follows. With gradient accumulation, pass False for
                all micro-batches but the last: their gradients are added up before they are
                compared, as the optimizer sees them.
        """
        self._check(losses)
        total = reduce(add, losses)
        try:
            if self._sampled():
                self._arm(losses, self._ones(losses), whole_update=update)
            (total if self.scaler is None else self.scaler.scale(total)).backward()
        except BaseException:
            self._forget()
            raise
        self._recorder.disarm()
        if update:
            self.advance()

    def join(self, *losses: Tensor) -> Tensor:
        """Give the sum of the losses, for a framework that calls `backward` itself.

        Recording happens inside that call, whatever scales or divides the sum before it. Once per
        optimizer update, `advance` must follow.
        """
        self._check(losses)
        total = reduce(add, losses)
        if self._sampled() and total.requires_grad:
            total.register_hook(lambda seed: self._arm(losses, seed, whole_update=False))
        return total

    def advance(self) -> None:
        """Close the record of an update: all its backward passes have been made."""
        if self._losses is not None:
            try:
                measured = self._recorder.measure()
                if self._group is not None:
                    (self._losses,) = mean_over(self._group, [self._losses])
            except BaseException:
                self._forget()
                raise
            self._pending.append((self.step, self._losses, self._scale, measured))
            self._losses = None
            if len(self._pending) >= _KEPT_ON_DEVICE:
                self._flush()
        self.step += 1

    def to_dataset(self) -> xr.Dataset:
        """What was recorded so far."""
        self._flush()
        return make_dataset(
            self._rows,
            self._recorder.layers,
            self._recorder.sizes,
            self.objectives or ("main", "auxiliary"),
            provenance("gradients.Trace", self.model, every=self.every, level="parameter"),
        )

    def _sampled(self) -> bool:
        return self.step % self.every == 0

    def _arm(self, losses: Sequence[Tensor], seed: Tensor, *, whole_update: bool) -> None:
        self._recorder.arm(losses, seed, whole_update=whole_update)
        values = torch.stack([loss.detach().double().reshape(()) for loss in losses])
        one = torch.ones((), dtype=torch.float64, device=values.device)
        self._scale = one if self.scaler is None else self.scaler.scale(one)
        weighted = values * (seed.double().reshape(()) / self._scale)
        self._losses = weighted if self._losses is None else self._losses + weighted

    def _ones(self, losses: Sequence[Tensor]) -> Tensor:
        one = torch.ones_like(losses[0].detach())
        return one if self.scaler is None else self.scaler.scale(one)

    def _forget(self) -> None:
        self._recorder.reset()
        self._losses = None

    def _flush(self) -> None:
        owners, layers = self._recorder.owners, len(self._recorder.layers)
        for step, losses, scale, measured in self._pending:
            self._rows.append(make_row(step, losses, scale, measured, owners, layers))
        self._pending.clear()

    def _check(self, losses: Sequence[Tensor]) -> None:
        if self.objectives is None:
            self.objectives = _default_names(len(losses))
        if not losses or len(losses) != len(self.objectives):
            raise ValueError(
                f"losses: expected {len(self.objectives)} ({', '.join(self.objectives)}), "
                f"got {len(losses)}"
            )
        for name, loss in zip(self.objectives, losses, strict=True):
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise ValueError(f"losses: {name!r}: expected a scalar tensor, got {got}")


def _default_names(count: int) -> tuple[str, ...]:
    if count <= 2:
        return ("main", "auxiliary")[:count]
    return ("main", *(f"auxiliary {i}" for i in range(1, count)))


def _names(objectives: Sequence[str]) -> tuple[str, ...]:
    names = tuple(objectives)
    if isinstance(objectives, str) or not names or len(set(names)) < len(names):
        raise ValueError(f"`objectives`: expected different names, got {objectives!r}")
    return names
