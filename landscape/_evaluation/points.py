"""Evaluate many points: here or on an executor, with progress, and resumable.

`evaluate` is what the verbs call: it calibrates, opens a `Run` (a table of values, filled in piece
by piece and kept in a checkpoint), and lets a `Strategy` decide which points are filled in.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from landscape._evaluation.calibrate import calibrate
from landscape._evaluation.checkpoint import Checkpoint, check_place
from landscape._evaluation.point import Plan, point_evaluator
from landscape._evaluation.problem import Problem, identify
from landscape._evaluation.workers import evaluate_pickled, pickle_problem
from resonance_toolkit import Progress, reporting, spread

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Seconds after which finished points are written even if a piece is not complete.
_SAVE_EVERY = 2.0


@dataclass(frozen=True)
class Evaluation:
    """Values at points.

    Attributes:
        problem: What was evaluated.
        plan: How.
        values: By name, shape `(point,)`.
        evaluated: Which points were evaluated; the others are interpolated.
        error_estimate: Of the interpolated loss, relative to its range.
    """

    problem: Problem
    plan: Plan
    values: dict[str, Array]
    evaluated: NDArray[np.bool_]
    error_estimate: float


class Strategy(Protocol):
    """Which points are evaluated, and how values at the others are found.

    Attributes:
        label: What is being done, for the progress shown.
        may_end_early: Whether some points may never be evaluated.
    """

    @property
    def label(self) -> str:
        """See above."""

    @property
    def may_end_early(self) -> bool:
        """See above."""

    def needs_margins(self, problem: Problem) -> bool:
        """Whether the margin of each sample must be recorded, beside the values."""

    def fill(self, run: "Run", value_names: list[str]) -> tuple[Array, float]:
        """Fill a run. Returns the table of values and the estimated error of the loss."""


@dataclass(frozen=True)
class EvaluateAll:
    """Evaluate every point."""

    label: str = "landscape"
    may_end_early: bool = False

    def needs_margins(self, _problem: Problem) -> bool:
        """They only help to interpolate."""
        return False

    def fill(self, run: "Run", _value_names: list[str]) -> tuple[Array, float]:
        """Fill in everything."""
        run.fill(np.arange(len(run.points)))
        return run.table, 0.0


def evaluate(
    problem: Problem,
    points: Array,
    *,
    points_per_piece: int,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
    strategy: Strategy = EvaluateAll(),
) -> Evaluation:
    """Evaluate a problem at points.

    Args:
        problem: What to evaluate.
        points: Where, shape `(point, axis)`.
        points_per_piece: Points in a piece on an executor, and between two writes.
        checkpoint: Where finished points are kept, if anywhere.
        executor: Takes pieces; None works in this process, point by point.
        strategy: Which points to evaluate; all by default.
    """
    if checkpoint is not None:
        check_place(Path(checkpoint))

    # Margins only after calibration, which compares values and has no use for them.
    plan = calibrate(problem, points)
    if strategy.needs_margins(problem):
        plan = replace(plan, record_margins=True)

    n_columns = len(problem.value_names)
    if plan.record_margins:
        n_columns += problem.measurement.n_samples

    storage = None
    if checkpoint is not None:
        identity = identify(problem, draws_random_numbers=plan.reseed)
        identity["points"] = points.tobytes().hex()
        storage = Checkpoint(checkpoint, identity, points, problem.value_names, n_columns)

    with _working(problem, plan, executor) as work:
        run = Run(points, work, n_columns, points_per_piece, storage, executor)
        run.check_finished(problem.value_names)
        centre = int(np.argmin(np.square(points).sum(1)))

        # An hour of NaN is told at once where the inputs already show it, else afterwards.
        is_told = not problem.measurement.has_finite_inputs and warn_unless_finite(
            work(points[[centre]])[0, 0]
        )
        with _reporting(run, strategy, checkpoint):
            table, error_estimate = strategy.fill(run, problem.value_names)
        if not is_told:
            warn_unless_finite(table[centre, 0])

    # With margins, the table has more columns than there are names.
    values = dict(zip(problem.value_names, table.T, strict=False))
    return Evaluation(problem, plan, values, run.is_done, error_estimate)


def warn_unless_finite(loss: float) -> bool:
    """Warn of a loss at the model itself that is not a number; tell whether it was needed."""
    if np.isfinite(loss):
        return False

    warnings.warn(
        f"the loss is {loss} at the centre, the point nearest to the model itself: `data` or "
        "weights may hold NaN or infinity",
        stacklevel=4,
    )
    return True


class Run:
    """Values at points, filled in piece by piece.

    Args:
        points: Where to evaluate, shape `(point, axis)`.
        work: Gives the values of a piece of points, shape `(point, value)`.
        n_values: Values at each point.
        points_per_piece: Points in a piece on an executor, and between two writes.
        checkpoint: Where finished points are kept, if anywhere.
        executor: Takes pieces; None works in this process, point by point.
    """

    def __init__(
        self,
        points: Array,
        work: Callable[[Array], Array],
        n_values: int,
        points_per_piece: int,
        checkpoint: Checkpoint | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.points = points
        self.points_per_piece = points_per_piece
        self._work = work
        self._checkpoint = checkpoint
        self._executor = executor
        self.progress: Progress | None = None

        self.table = np.full((len(points), n_values), np.nan)
        self.is_done: NDArray[np.bool_] = np.zeros(len(points), bool)

        # The checkpoint's own arrays, not copies: saving writes whatever is filled in here.
        if checkpoint is not None:
            self.table = checkpoint.table
            self.is_done = checkpoint.is_done

    def fill(self, indices: Indices) -> None:
        """Evaluate the points with these indices, but for those that are done."""
        missing_indices = indices[~self.is_done[indices]]

        # In this process point by point, so that progress shows. It is the run's own: a strategy
        # may fill in points many times.
        step = 1 if self._executor is None else self.points_per_piece
        pieces = [missing_indices[i : i + step] for i in range(0, len(missing_indices), step)]
        places = [self.points[piece] for piece in pieces]
        results = spread(self._work, places, executor=self._executor, label=None)

        n_unsaved = 0
        saved_at = time.monotonic()
        try:
            for number, values in results:
                self.table[pieces[number]] = values
                self.is_done[pieces[number]] = True
                n_unsaved += len(values)
                if self.progress is not None:
                    self.progress.update(len(values))

                is_late = time.monotonic() - saved_at > _SAVE_EVERY
                if n_unsaved >= self.points_per_piece or is_late:
                    self._save()
                    n_unsaved = 0
                    saved_at = time.monotonic()
        finally:
            del results  # cancels what an executor has not begun
            if n_unsaved:
                self._save()

    def check_finished(self, value_names: list[str]) -> None:
        """Raise if a finished point of a checkpoint has other values now.

        What a forward, loss or metric computes is not among the settings that are compared.
        """
        first_finished = np.flatnonzero(self.is_done)[:1]
        if not len(first_finished):
            return

        new_values = self._work(self.points[first_finished])[0].tolist()
        old_values = self.table[first_finished[0]].tolist()
        for name, new, old in zip(value_names, new_values, old_values, strict=False):
            # Another machine may round otherwise; then accuracy may change by a whole sample.
            is_same = name == "accuracy" or np.isclose(new, old, rtol=1e-5, atol=0, equal_nan=True)
            if not is_same:
                raise ValueError(
                    "`checkpoint`: was made with another loss, metric or model: at its first "
                    f"point `{name}` is {old}, now {new}. Delete it or give another path"
                )

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save()


@contextmanager
def _reporting(run: Run, strategy: Strategy, checkpoint: str | Path | None) -> Iterator[None]:
    """Show the progress of a run while the body fills it."""
    with reporting(
        strategy.label,
        unit="point",
        total=len(run.points),
        found=int(run.is_done.sum()),
        source="" if checkpoint is None or not run.is_done.any() else Path(checkpoint).name,
        may_end_early=strategy.may_end_early,
    ) as run.progress:
        yield


@contextmanager
def _working(
    problem: Problem, plan: Plan, executor: Executor | None
) -> Iterator[Callable[[Array], Array]]:
    """Give a function that evaluates a piece of points, here or on an executor."""
    if executor is not None:
        yield partial(evaluate_pickled, pickle_problem(problem, plan))
        return

    with point_evaluator(problem, plan) as evaluate_point:
        yield lambda places: np.array([evaluate_point(place) for place in places.tolist()])
