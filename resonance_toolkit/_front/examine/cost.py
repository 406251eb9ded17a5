"""What passes and updates of a model cost, measured before anything is planned."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from resonance_toolkit._front.examine.budget import seconds_for
from resonance_toolkit._front.examine.subject import Subject
from resonance_toolkit._front.examine.training import Arm, Run, start_run, train_on_batch

# Passes that are timed: the first of all pays for memory and caches, and does not count.
_N_TIMED = 3

# Seconds to move, copy or add one number of a vector as long as the weights, on one slow core.
_SECONDS_PER_NUMBER = 2e-9


@dataclass(frozen=True)
class Cost:
    """Seconds.

    Attributes:
        forward: A forward pass, per sample.
        gradient: Forward and backward pass, per sample.
        plain_update: An update of a copy.
        branch_update: An update with branches; NaN if there can be none.
        copy: Making a copy of the model, branches and optimizer.
        draw: Drawing a sample from the data.
        vector: One operation on all weights.
    """

    forward: float
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

    Raises:
        Exception: Whatever a forward or backward pass of the model raises.
    """
    model = subject.model
    n_samples = count_samples(subject.few)
    inputs, _ = subject.few

    with preserving(model), preserving_rng(devices_of(model)), evaluating(model):
        with torch.no_grad():
            forward = _time(lambda: call_model(model, inputs), model)
        gradient = _time(lambda: _differentiate(subject), model)

    draw = seconds_for(lambda: subject.draw(n_samples)) / n_samples
    n_weights = sum(parameter.numel() for parameter in model.parameters())

    updates = dict.fromkeys(("plain", "branches"), math.nan)
    copy = math.nan
    if trains:
        updates, copy = _time_updates(subject, batch_size)
    return Cost(
        forward=forward / n_samples,
        gradient=gradient / n_samples,
        plain_update=updates["plain"],
        branch_update=updates["branches"],
        copy=copy,
        draw=draw,
        vector=n_weights * _SECONDS_PER_NUMBER,
    )


def _differentiate(subject: Subject) -> None:
    with torch.enable_grad():
        loss, _ = subject.loss.on_batch(subject.model, subject.few)
        if loss.requires_grad:
            loss.backward()


def _time_updates(subject: Subject, batch_size: int) -> tuple[dict[str, float], float]:
    """Time updates of both kinds on copies; NaN where one cannot be made, for whatever reason."""
    updates: dict[str, float] = {}
    copy = math.nan
    n_in_batch = min(batch_size, count_samples(subject.few))
    arms: tuple[Arm, ...] = ("plain", "branches")
    for arm in arms:
        runs: list[Run] = []
        try:
            copy = seconds_for(lambda arm=arm, runs=runs: runs.append(start_run(subject, arm, 0)))  # type: ignore[misc]
            seconds = _time(lambda run=runs[0]: train_on_batch(run, subject.few), runs[0].model)  # type: ignore[misc]
            updates[arm] = seconds * batch_size / n_in_batch
        except Exception:  # the part itself will say what is wrong
            updates[arm] = math.nan
        finally:
            for run in runs:
                run.close()
    return updates, copy


def _time(work: Callable[[], object], model: nn.Module) -> float:
    def work_and_wait() -> None:
        work()
        for device in devices_of(model):
            if device.type not in ("cpu", "meta"):
                torch.accelerator.synchronize(device)

    work_and_wait()
    return min(seconds_for(work_and_wait) for _ in range(_N_TIMED))
