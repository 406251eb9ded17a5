"""One run of the training experiment: a copy of the model, plain or with branches.

    start_run         copy, branches, optimizer, all decided by the run's seed
    train_on_batch    one update
    train_copy        all updates of a run, with measurements on held-out samples in between

Both arms of a seed see the same batches in the same order, begin with the given weights and draw
the same dropout.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from resonance_toolkit import (
    Batches,
    count_samples,
    devices_of,
    evaluating,
    gradients,
    index_rows,
    preserving_rng,
    probes,
    seed_generators,
    to_host,
)
from resonance_toolkit._front.examine.main_loss import Measured
from resonance_toolkit._front.examine.subject import Subject

Arm: TypeAlias = Literal["plain", "branches"]
ARMS: tuple[Arm, ...] = ("plain", "branches")

# AdamW's learning rate: its usual one for models trained from the start, and less for larger ones,
# which mostly come trained and would forget.
_LEARNING_RATE = 1e-3
_LEARNING_RATE_OF_LARGE = 1e-4
_LARGE = 10_000_000

# Into so many groups, or a few more, the held-out samples are cut for the last measurement: their
# spread says how much of a difference is the choice of these samples. Not single samples, since a
# loss may be the mean of a batch.
N_GROUPS = 16

# Samples at a time in the other measurements: without graphs, twice a training batch has room.
_MEASURED_AT_ONCE = 64


@dataclass(eq=False)
class Run:
    """A copy that is trained.

    Attributes:
        subject: Of what it is a copy.
        model: The copy.
        probe: Its branches; None in the plain arm.
        trace: Reads the gradients; None where there is nothing to compare.
        optimizer: Of all that is trained.
    """

    subject: Subject
    model: nn.Module
    probe: Any
    trace: Any
    optimizer: Any
    stack: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """Let go of hooks."""
        self.stack.close()


@dataclass(frozen=True)
class TrainingPlan:
    """How long runs are, and on what.

    Attributes:
        steps: Updates.
        measured_steps: After which the held-out samples are measured, 0 first.
        trace_every: Updates between two readings of the gradients.
        batch_size: Samples in an update.
    """

    steps: int
    measured_steps: tuple[int, ...]
    trace_every: int
    batch_size: int


@dataclass(frozen=True, eq=False)
class SplitSamples:
    """Samples to train on and those held out, as pieces of one shape each."""

    train: Batches
    held_out: Batches

    @property
    def n_train(self) -> int:
        """Samples to train on."""
        return sum(count_samples(batch) for batch in self.train)

    @property
    def n_held_out(self) -> int:
        """Samples held out."""
        return sum(count_samples(batch) for batch in self.held_out)


class OutOfTimeError(Exception):
    """The clock has stopped a run between its updates."""


def default_learning_rate(n_parameters: int) -> float:
    """The learning rate of AdamW where the user gives no optimizer.

    Examples:
        >>> default_learning_rate(5000)
        0.001
    """
    return _LEARNING_RATE if n_parameters < _LARGE else _LEARNING_RATE_OF_LARGE


def start_run(subject: Subject, arm: Arm, seed: int, trace_every: int | None = None) -> Run:
    """Make a copy of the model that can be trained.

    Raises:
        ValueError: If it cannot be copied, nothing in it is trained, or branches do not fit.
    """
    model = subject.copy_model()

    # Layers that the user keeps in eval mode stay there, unless the model as a whole is in it.
    if not model.training:
        model.train()
    trained_parameters = [p for p in model.parameters() if p.requires_grad]
    if not trained_parameters:
        raise ValueError("`model`: no parameter is trained, all have requires_grad=False")

    with ExitStack() as stack:
        probe = None
        trace = None
        if arm == "branches":
            probe = stack.enter_context(subject.attach_branches(model, seed))
            if trace_every is not None:
                trace = stack.enter_context(gradients.Trace(model, every=trace_every))

        branches = [] if probe is None else list(probe.parameters())

        # By the model alone, so that both arms have the same.
        learning_rate = default_learning_rate(sum(p.numel() for p in model.parameters()))
        make_optimizer = subject.settings.optimizer or partial(torch.optim.AdamW, lr=learning_rate)
        optimizer = make_optimizer([*trained_parameters, *branches])
        if not hasattr(optimizer, "step") or not hasattr(optimizer, "zero_grad"):
            raise TypeError(
                "`optimizer`: expected a callable that returns an optimizer, it returned "
                f"{type(optimizer).__name__}"
            )
        return Run(subject, model, probe, trace, optimizer, stack.pop_all())


def train_on_batch(run: Run, batch: tuple[Any, Any]) -> Tensor:
    """Make one update, and return the main loss before it, without its graph."""
    _, targets = batch
    run.optimizer.zero_grad(set_to_none=True)
    main, _ = run.subject.loss.on_batch(run.model, batch)

    if run.probe is None:
        main.backward()
    else:
        auxiliary = auxiliary_loss(run.probe, targets, main)
        if run.trace is None:
            (main + auxiliary).backward()
        else:
            run.trace.backward(main, auxiliary)
    run.optimizer.step()
    return main.detach()


def auxiliary_loss(probe: Any, targets: Any, main: Tensor) -> Tensor:
    """The branches' loss of the latest pass; targets are already where they belong."""
    is_adaptive = isinstance(probe.strength, probes.schedules.Adaptive)
    loss: Tensor = probe.loss(targets, main=main if is_adaptive else None, shift=False)
    return loss


def train_copy(
    subject: Subject,
    arm: Arm,
    seed: int,
    samples: SplitSamples,
    plan: TrainingPlan,
    on_update: Callable[[], None],
) -> xr.Dataset:
    """Train one copy, and measure it on the held-out samples.

    Args:
        subject: What is examined.
        arm: With branches or without.
        seed: Determines order of batches, dropout and branches.
        samples: To train on, and held out.
        plan: How long.
        on_update: Called before each update; may raise to stop.

    Returns:
        Dataset with `train_loss`, `loss`, `accuracy (step)`; `group_loss`, `group_accuracy (group)`
        after the last update; `listening_accuracy (point)`; with branches also `cosine (trace_step,
        layer)` and `cosine_total (trace_step)`.
    """
    devices = devices_of(subject.model)
    with (
        preserving_rng(devices),
        torch.inference_mode(False),
        torch.enable_grad(),
        ExitStack() as stack,
    ):
        run = start_run(subject, arm, seed, plan.trace_every)
        stack.callback(run.close)
        seed_generators(seed, devices)

        batches = draw_batches(samples.train, plan.batch_size, seed)
        curves = {"train_loss": [math.nan], "loss": [], "accuracy": []}
        last = _add_measurement(curves, run, samples)
        recent_losses: list[Tensor] = []

        for step in range(1, plan.steps + 1):
            on_update()
            recent_losses.append(train_on_batch(run, next(batches)))
            if step in plan.measured_steps:
                curves["train_loss"].append(
                    torch.stack(to_host(recent_losses)).double().mean().item()
                )
                recent_losses.clear()
                last = _add_measurement(curves, run, samples, is_last=step == plan.steps)

        cosines = None if run.trace is None else run.trace.to_dataset()
        run.close()
        listening, reason = _fit_listening_heads(run, samples, seed)

    return _as_dataset(curves, last, plan, cosines, listening, reason)


def draw_batches(pieces: Batches, batch_size: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches for ever, each epoch in another order; the last few samples of it may miss.

    Samples of one shape come together. A smaller last batch is left out where there are full ones,
    since batch norm takes its statistics from it.
    """
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows_of_batches: list[tuple[int, Tensor]] = []
        for index, piece in enumerate(pieces):
            order = torch.randperm(count_samples(piece), generator=generator, device="cpu")
            rows_of_piece = list(order.split(batch_size))
            if len(rows_of_piece) > 1 and len(rows_of_piece[-1]) < batch_size:
                rows_of_piece.pop()
            rows_of_batches += [(index, rows) for rows in rows_of_piece]

        places = torch.randperm(len(rows_of_batches), generator=generator, device="cpu")
        for place in places.tolist():
            index, rows = rows_of_batches[place]
            inputs, targets = pieces[index]
            yield index_rows(inputs, rows), index_rows(targets, rows)


def split_samples(pieces: Batches, n_held_out: int, seed: int) -> SplitSamples:
    """Hold out some samples, chosen by the seed, whatever pieces they are in.

    Raises:
        ValueError: If there are fewer than two.
    """
    sizes = [count_samples(piece) for piece in pieces]
    n_samples = sum(sizes)
    if n_samples < 2:
        raise ValueError(
            "`data`: expected at least two samples, one to train on and one held out, got one"
        )

    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n_samples, generator=generator, device="cpu")
    is_held_out = torch.zeros(n_samples, dtype=torch.bool, device="cpu")
    is_held_out[order[: min(n_held_out, n_samples - 1)]] = True

    train: Batches = []
    held_out: Batches = []
    for (inputs, targets), flags in zip(pieces, is_held_out.split(sizes), strict=True):
        for side, is_on_side in ((held_out, flags), (train, ~flags)):
            rows = is_on_side.nonzero()[:, 0]
            if len(rows):
                side.append((index_rows(inputs, rows), index_rows(targets, rows)))
    return SplitSamples(train, held_out)


def cut_pieces(pieces: Batches, batch_size: int) -> Batches:
    """Cut samples into batches, in their order."""
    return [
        (index_rows(inputs, rows), index_rows(targets, rows))
        for inputs, targets in pieces
        for rows in torch.arange(count_samples((inputs, targets))).split(batch_size)
    ]


def _add_measurement(
    curves: dict[str, list[float]], run: Run, samples: SplitSamples, *, is_last: bool = False
) -> Measured:
    batch_size = max(1, samples.n_held_out // N_GROUPS) if is_last else _MEASURED_AT_ONCE

    # Measuring draws nothing that training would draw.
    with evaluating(run.model), preserving_rng(devices_of(run.model)):
        means = run.subject.loss.measure(run.model, cut_pieces(samples.held_out, batch_size))
    curves["loss"].append(means.loss)
    curves["accuracy"].append(means.accuracy)
    return means


def _fit_listening_heads(
    run: Run, samples: SplitSamples, seed: int
) -> tuple[xr.Dataset | None, str]:
    """Fit heads that only listen to the trained copy, and measure them on the held-out samples."""
    try:
        with run.subject.attach_branches(run.model, seed, listen_only=True) as listener:
            result = listener.fit(
                cut_pieces(samples.train, _MEASURED_AT_ONCE),
                test=cut_pieces(samples.held_out, _MEASURED_AT_ONCE),
                samples=None,
            )
    except (ValueError, RuntimeError, TypeError) as error:
        return None, str(error).splitlines()[0]
    return result, ""


def _as_dataset(
    curves: dict[str, list[float]],
    last: Measured,
    plan: TrainingPlan,
    cosines: xr.Dataset | None,
    listening: xr.Dataset | None,
    listening_reason: str,
) -> xr.Dataset:
    variables: dict[str, Any] = {name: ("step", values) for name, values in curves.items()}
    variables["group_loss"] = ("group", last.losses)
    variables["group_accuracy"] = ("group", last.accuracies)
    coordinates: dict[str, Any] = {
        "step": list(plan.measured_steps),
        "group": list(range(len(last.losses))),
        "group_samples": ("group", last.n_samples),
    }

    if cosines is not None:
        variables["cosine"] = (("trace_step", "layer"), cosines["cosine"].values)
        variables["cosine_total"] = ("trace_step", cosines["cosine_total"].values)
        coordinates["trace_step"] = cosines["step"].values
        coordinates["layer"] = cosines["layer"].values

    if listening is not None:
        measure = "accuracy" if listening["accuracy"].notnull().any() else "loss"
        variables[f"listening_{measure}"] = ("point", listening[measure].values)
        coordinates["point"] = listening["layer"].values

    return xr.Dataset(
        variables, coords=coordinates, attrs={"listening_reason": listening_reason}
    ).astype({name: np.float64 for name in variables})
