"""Few evaluations instead of all: progressive points on the grid, interpolation, an estimate.

Each round interpolates the loss from the points evaluated so far, estimates the error, and adds
points: far from the others, where two interpolants disagree, and some at random.

    start -> interpolate -> estimate small enough? -> interpolate everything
                 ^                | no
                 |                v
                 +---------- add points    (too many, or hopeless: evaluate everything)
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from landscape._evaluation.interpolate import Kernel, interpolate
from landscape._evaluation.point import limiting_threads
from landscape._evaluation.points import Run
from landscape._evaluation.problem import Problem

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Method = Literal["exact", "adaptive"]
METHODS: tuple[Method, ...] = get_args(Method)

# Points along each axis to begin with.
_START = 6

# Points added in a round: guided by doubt, and at random for an honest estimate.
_GUIDED = 12
_RANDOM = 8

# Share of the points from which evaluating all of them is no more expensive.
_MOST = 0.4

# A chaotic surface: after the first 6 x 6 points and ten rounds of 20 (236 points), the estimate is
# still more than 20 times the tolerance.
_HOPELESS = 20.0
_PATIENCE = _START**2 + 10 * (_GUIDED + _RANDOM)

# Samples beyond which a margin of each would make the table too large.
_MAX_MARGINS = 2000


# Largest error of an interpolated accuracy, at points that were left out, that is let pass.
_ACCURACY_TOLERANCE = 0.02


@dataclass(frozen=True)
class Adaptive:
    """Evaluate points until the interpolated loss is good to `tolerance` of its range.

    The error is estimated by the larger of two numbers: the change since 0.6 of the points,
    anywhere, and twice the largest error at the last 40 points before they were used. Where it does
    not get small, every point is evaluated.

    Attributes:
        shape: Points along alpha and beta.
        tolerance: Error allowed, relative to the range of the loss.
        seed: Decides the points that are added at random.
        label: What is being done, for the progress shown.
        may_end_early: True: few points are often enough.
    """

    shape: tuple[int, int]
    tolerance: float
    seed: int
    label: str = "landscape"
    may_end_early: bool = True

    def needs_margins(self, problem: Problem) -> bool:
        """If this is a classification of few samples.

        Accuracy is a step function and interpolates badly; margins are continuous, and tell it. The
        accuracy of tokens or pixels, or of many samples, is interpolated itself where the points
        evaluated first predict the others, and else left out where nothing was evaluated.
        """
        measurement = problem.measurement
        targets = [y for _, y in measurement.batches]
        is_vector = all(isinstance(y, Tensor) and y.numel() == len(y) for y in targets)
        is_classification = is_vector and not any(y.is_floating_point() for y in targets)
        return is_classification and measurement.n_samples <= _MAX_MARGINS

    def fill(self, run: Run, value_names: list[str]) -> tuple[Array, float]:
        """Evaluate as many points as it takes.

        Returns:
            The table of values, interpolated where not evaluated (metrics are NaN there), and the
            estimated error of the loss.
        """
        places = _places(self.shape)
        generator = np.random.default_rng(abs(self.seed))  # numpy takes no negative one

        evaluated = _first_points(self.shape)
        run.fill(evaluated)
        misses: list[float] = []

        while len(evaluated) <= _MOST * len(places):
            losses = run.table[evaluated, 0]
            if not np.isfinite(losses).all():
                break

            surface = _interpolate(places[evaluated], losses, places)
            estimate = _estimate_error(run, evaluated, surface, places, misses)
            if estimate <= self.tolerance:
                return _interpolate_table(run, evaluated, places, value_names), estimate
            if len(evaluated) >= _PATIENCE and estimate > _HOPELESS * self.tolerance:
                break

            rough_surface = _interpolate(
                places[evaluated], losses, places, kernel="thin_plate_spline"
            )
            doubt = np.abs(surface - rough_surface)
            added = _next_points(places, evaluated, doubt, generator)
            run.fill(added)

            misses += np.abs(run.table[added, 0] - surface[added]).tolist()
            evaluated = np.concatenate([evaluated, added])

        run.fill(np.arange(len(places)))
        return run.table, 0.0


def _places(shape: tuple[int, int]) -> Array:
    """All points of the grid on the square from -1 to 1, whatever its span: shape `(point, 2)`."""
    axes = (np.linspace(-1, 1, n) for n in shape)
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def _interpolate(points: Array, values: Array, places: Array, kernel: Kernel = "quintic") -> Array:
    # On one thread: how many evaluate points is chosen by a clock, and sums of several threads are
    # rounded otherwise, while the same inputs must give the same surface.
    with limiting_threads(1):
        return interpolate(points, values, places, kernel)


def _first_points(shape: tuple[int, int]) -> Indices:
    rows, columns = (
        np.unique(np.round(np.linspace(0, n - 1, min(_START, n))).astype(int)) for n in shape
    )
    lattice = (rows[:, None] * shape[1] + columns).ravel()

    # The model itself, in the centre, is always evaluated.
    centre = (shape[0] // 2) * shape[1] + shape[1] // 2
    return np.append(lattice[lattice != centre], centre)


def _estimate_error(
    run: Run, evaluated: Indices, surface: Array, places: Array, misses: list[float]
) -> float:
    # How much the last 40 per cent of the points have changed the surface.
    early = evaluated[: int(0.6 * len(evaluated))]
    early_surface = _interpolate(places[early], run.table[early, 0], places)
    change = np.abs(surface - early_surface).max()

    # How far off the surface was at the points of the last two rounds, before it knew them.
    largest_miss = max(misses[-40:], default=np.inf)
    loss_range = np.ptp(run.table[evaluated, 0]) or 1.0
    return float(max(change, 2 * largest_miss) / loss_range)


def _next_points(
    places: Array, evaluated: Indices, doubt: Array, generator: np.random.Generator
) -> Indices:
    """Far from what is known, where in doubt; then some at random, for an honest estimate."""
    distance = cdist(places, places[evaluated]).min(1)

    # Where there is no doubt at all, distance decides.
    weight = doubt + 1e-3 * doubt.max() + 1e-300

    guided: list[int] = []
    for _ in range(min(_GUIDED, len(places) - len(evaluated))):
        best = int(np.argmax(distance * weight))
        if distance[best] == 0:
            break
        guided.append(best)
        distance = np.minimum(distance, cdist(places, places[[best]])[:, 0])

    remaining = np.setdiff1d(np.arange(len(places)), np.append(evaluated, guided))
    random = generator.choice(remaining, size=min(_RANDOM, len(remaining)), replace=False)
    return np.append(np.array(guided, dtype=np.int64), random)


def _is_smooth(points: Array, accuracies: Array) -> bool:
    """Tell whether accuracies predict one another: a step function of few positions does not."""
    if np.isnan(accuracies).any():
        return False
    n_early = int(0.6 * len(points))
    predicted = _interpolate(points[:n_early], accuracies[:n_early], points[n_early:])
    errors = np.abs(np.clip(predicted, 0, 1) - accuracies[n_early:])
    return bool(errors.max(initial=0) <= _ACCURACY_TOLERANCE)


def _interpolate_table(
    run: Run, evaluated: Indices, places: Array, value_names: list[str]
) -> Array:
    """The table with loss, standard error and accuracy interpolated; metrics stay unknown."""
    table = np.full((len(places), len(value_names)), np.nan)
    loss, error, accuracy = (value_names.index(n) for n in ("loss", "loss_se", "accuracy"))

    smooth_values = run.table[evaluated][:, [loss, error]]
    if np.isnan(smooth_values[:, 1]).any():
        table[:, loss] = _interpolate(places[evaluated], smooth_values[:, 0], places)
    else:
        table[:, [loss, error]] = _interpolate(places[evaluated], smooth_values, places)
        table[:, error] = np.maximum(table[:, error], 0)

    # A column of NaN is a sample whose target does not count.
    margins = run.table[evaluated, len(value_names) :]
    margins = margins[:, ~np.isnan(margins).all(0)]
    if margins.shape[1] and np.isfinite(margins).all():
        table[:, accuracy] = (_interpolate(places[evaluated], margins, places) > 0).mean(1)
    elif _is_smooth(places[evaluated], run.table[evaluated, accuracy]):
        rough_accuracy = _interpolate(places[evaluated], run.table[evaluated, accuracy], places)
        table[:, accuracy] = np.clip(rough_accuracy, 0, 1)

    # What was evaluated stays as it is, metrics included.
    table[run.is_done] = run.table[run.is_done][:, : len(value_names)]
    return table
