"""What a monitor measures, one row at a time, and how it keeps the training out of it.

All are called after the backward passes of an update and before the optimizer's step: the weights
are those that the gradients are of. What runs the model does so in eval mode, by verbs that leave
it bit for bit as it was, while the probe keeps its latest pass and the trace hears nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import xarray as xr
from torch import Tensor, nn

from resonance_toolkit import (
    Batches,
    Loss,
    NotApplicableError,
    attention,
    call_model,
    landscape,
    probes,
    resharding,
    showing_progress,
    unwrap,
)


class Instrument(Protocol):
    """Measures one part of the tree, at every so many updates."""

    part: str
    every: int

    def measure(self) -> xr.Dataset | None:
        """Measure one row, without the dimension `step`; None if there is nothing to measure."""


class Gradients:
    """The row that a trace has just recorded."""

    part = "gradients"

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self.every: int = trace.every

    def measure(self) -> xr.Dataset | None:
        """Take the row out of the trace, which is left without any."""
        rows: xr.Dataset = self._trace.to_dataset()
        if not rows.sizes["step"]:
            return None

        state = self._trace.state_dict()
        self._trace.load_state_dict({**state, "rows": {}})
        return rows.isel(step=-1).drop_vars("step")


class Branches:
    """Loss and accuracy of each branch on the latest batch, or the losses of exits."""

    part = "branches"

    def __init__(self, probe: Any, every: int) -> None:
        self._probe = probe
        self.every = every

    def measure(self) -> xr.Dataset:
        """Measure what the latest forward pass has left in the probe."""
        row: xr.Dataset = self._probe.measure()
        return row.drop_vars("step", errors="ignore")


class Attention:
    """The statistics of each head on the fixed samples."""

    part = "attention"

    def __init__(self, model: nn.Module, batches: Batches, probe: Any, every: int) -> None:
        self._model = unwrap(model)
        self._data = _as_data(batches)
        self._probe = probe
        self.every = every

    def measure(self) -> xr.Dataset:
        """Average the statistics over the samples."""
        with _apart_from_training(self._model, self._probe):
            try:
                captured = attention.capture(self._model, self._data, samples=None)
            except NotApplicableError as error:
                raise NotApplicableError("no attention was seen") from error

        statistics = captured.drop_dims("output", errors="ignore")
        means: xr.Dataset = statistics.mean("sample", keep_attrs=True)
        return means


class Sharpness:
    """How sharp each loss is along the update of each, on the fixed samples."""

    part = "sharpness"

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None,
        probe: Any,
        trace: Any,
        every: int,
    ) -> None:
        self._model = unwrap(model)
        self._data = _as_data(batches)
        self._loss = loss
        self._probe = probe
        self._trace = trace
        self.every = every

    def measure(self) -> xr.Dataset:
        """Measure the critical sharpness of the main loss, and of the branches' beside it."""
        losses: dict[str, Any] = {"main": self._loss}
        with (
            _apart_from_training(self._model, self._probe),
            _keeping_from_hearing(self._trace),
            _listening_copy(self._probe, self._model) as listener,
        ):
            if listener is not None:
                losses["auxiliary"] = _loss_of(listener)
            row: xr.Dataset = landscape.critical_sharpness(
                self._model, self._data, losses=losses, samples=None
            )
        return row


def _as_data(batches: Batches) -> Any:
    return batches[0] if len(batches) == 1 else batches


@contextmanager
def _apart_from_training(model: nn.Module, probe: Any) -> Iterator[None]:
    """Let the body run the model, and tell nobody: no bar, no pass of the probe's."""
    keeping_pass = nullcontext() if probe is None else probe.keeping_pass()
    with keeping_pass, resharding(model), showing_progress("off"):
        yield


@contextmanager
def _keeping_from_hearing(trace: Any) -> Iterator[None]:
    """Let a trace take no pass of the body for one of the training."""
    every = trace.every
    step = trace.step

    # With these it is at a step that is not sampled.
    trace.every = 2
    trace.step = 1

    try:
        yield
    finally:
        trace.every = every
        trace.step = step


@contextmanager
def _listening_copy(probe: Any, model: nn.Module) -> Iterator[Any]:
    """Hook a copy of the probe into the model, whose losses do not count as steps of training.

    None where the auxiliary loss is no function of model and data alone: of exits, whose loss has
    the main one in it, and where the strength follows the gradients of both.
    """
    is_plain = isinstance(probe, probes.Probe) and not probe.adaptive
    if not is_plain or probe.listen_only or not probe.connected:
        yield None
        return

    listener = copy.deepcopy(probe).reattach(model)
    try:
        with listener.listening():
            yield listener
    finally:
        listener.detach()


def _loss_of(listener: Any) -> Any:
    def auxiliary_loss(model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        call_model(model, inputs)
        loss: Tensor = listener.loss(targets, shift=False)
        return loss

    return auxiliary_loss
