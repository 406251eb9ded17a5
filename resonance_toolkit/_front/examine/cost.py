"""What passes and updates of a model cost, measured before anything is planned."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from resonance_toolkit import (
    call_model,
    count_samples,
    devices_of,
    evaluating,
    preserving,
    preserving_rng,
)
from resonance_toolkit._front.examine.budget import read_clock, seconds_for
from resonance_toolkit._front.examine.subject import N_TRIED, Subject
from resonance_toolkit._front.examine.training import ARMS, Arm, start_run, train_on_batch

# Passes that are timed, if there is time. The first of all pays for memory and caches, and does not
# count. Their mean, not the fastest: on a machine with other work, the plan will meet the mean.
_N_TIMED = 3

# All that is timed once, in forward passes: forward, gradient, and two kinds of update.
_N_FORWARD_PASSES = 10

# Of the budget, for all that is timed.
_SHARE_OF_BUDGET = 0.1

# Forward and backward pass over a forward pass, where the backward pass cannot be timed.
_PASSES_OF_A_GRADIENT = 3

# Seconds to move, copy or add one number of a vector as long as the weights, on one slow core.
_SECONDS_PER_NUMBER = 2e-9


@dataclass(frozen=True)
class Cost:
    """Seconds.

    Attributes:
        forward: A forward pass, per sample beside the `overhead`.
        overhead: A forward pass, whatever the number of samples.
        gradient: Forward and backward pass, per sample.
        plain_update: An update of a copy.
        branch_update: An update with branches; NaN if there can be none.
        copy: Making a copy of the model, branches and optimizer.
        draw: Drawing a sample from the data.
        vector: One operation on all weights.
    """

    forward: float
    overhead: float
    gradient: float
    plain_update: float
    branch_update: float
    copy: float
    draw: float
    vector: float

    @classmethod
    def from_numbers(cls, numbers: dict[str, float]) -> Self:
        """Read what `as_numbers` wrote."""
        return cls(**{name: math.nan if x is None else x for name, x in numbers.items()})

    def as_numbers(self) -> dict[str, Any]:
        """For a file: None stands for what is unknown."""
        return {name: None if math.isnan(x) else x for name, x in asdict(self).items()}


def measure_cost(subject: Subject, batch_size: int, *, trains: bool) -> Cost:
    """Time passes of the model, and of updates if any will be made.

    A model of which a pass takes long is timed on fewer samples, and only once.

    Args:
        subject: What is examined.
        batch_size: Samples in an update.
        trains: Whether updates will be made.

    Raises:
        Exception: Whatever a forward pass of the model raises.
    """
    model = subject.model
    small = subject.first(N_TRIED)
    n_small = count_samples(small)

    with preserving(model), preserving_rng(devices_of(model)), evaluating(model):
        with torch.no_grad():
            _time(lambda: call_model(model, small[0]), model, 1)
            small_pass = _time(lambda: call_model(model, small[0]), model, 1)

        seconds = _SHARE_OF_BUDGET * subject.settings.budget_seconds
        n_passes = seconds * n_small / max(small_pass, 1e-9) / _N_FORWARD_PASSES
        n_rows = math.floor(min(max(n_passes, 2), count_samples(subject.few)))
        n_timed = _N_TIMED if n_passes > (_N_TIMED + 1) * n_rows else 1
        batch = subject.first(n_rows)
        n_samples = count_samples(batch)

        with torch.no_grad():
            whole_pass = _time(lambda: call_model(model, batch[0]), model, n_timed)
        try:
            gradient = _time(lambda: _differentiate(subject, batch), model, n_timed)
        except Exception:  # the parts that need gradients will say so
            gradient = _PASSES_OF_A_GRADIENT * whole_pass

    draw = seconds_for(lambda: subject.draw(n_samples)) / n_samples
    n_weights = sum(parameter.numel() for parameter in model.parameters())

    updates: dict[Arm, float] = dict.fromkeys(ARMS, math.nan)
    copy = math.nan
    if trains:
        updates, copy = _time_updates(subject, batch, batch_size, n_timed)
    forward, overhead = _split_cost(small_pass, n_small, whole_pass, n_samples)
    return Cost(
        forward=forward,
        overhead=overhead,
        gradient=gradient / n_samples,
        plain_update=updates["plain"],
        branch_update=updates["branches"],
        copy=copy,
        draw=draw,
        vector=n_weights * _SECONDS_PER_NUMBER,
    )


def _split_cost(
    small_pass: float, n_small: int, whole_pass: float, n_samples: int
) -> tuple[float, float]:
    """What a sample costs, and what a pass costs beside its samples."""
    if n_samples <= n_small:
        return whole_pass / n_samples, 0.0
    forward = (whole_pass - small_pass) / (n_samples - n_small)

    # Clocks are coarse: half of the mean per sample is the least that is believed.
    forward = min(max(forward, whole_pass / n_samples / 2), whole_pass / n_samples)
    return forward, whole_pass - n_samples * forward


def _differentiate(subject: Subject, batch: tuple[Any, Any]) -> None:
    with torch.enable_grad():
        loss, _ = subject.loss.on_batch(subject.model, batch)
        if loss.requires_grad:
            loss.backward()


def _time_updates(
    subject: Subject, batch: tuple[Any, Any], batch_size: int, n_timed: int
) -> tuple[dict[Arm, float], float]:
    """Time updates of both kinds on copies, and making a copy.

    NaN where one cannot be made, for whatever reason.
    """
    updates = dict.fromkeys(ARMS, math.nan)
    copy = math.nan
    n_in_batch = count_samples(batch)

    for arm in ARMS:
        try:
            start = read_clock()
            with closing(start_run(subject, arm, 0)) as run:
                copy = read_clock() - start
                update = partial(train_on_batch, run, batch)
                seconds = _time(update, run.model, n_timed)
            updates[arm] = seconds * batch_size / n_in_batch
        except Exception:  # the part itself will say what is wrong
            continue

    return updates, copy


def _time(work: Callable[[], object], model: nn.Module, n_timed: int) -> float:
    """Mean seconds of some work; after a first time that does not count, if there are several."""

    def work_and_wait() -> None:
        work()
        for device in devices_of(model):
            if device.type not in ("cpu", "meta"):
                torch.accelerator.synchronize(device)

    if n_timed > 1:
        work_and_wait()
    return sum(seconds_for(work_and_wait) for _ in range(n_timed)) / n_timed
