"""Few evaluations instead of all: progressive points on the grid, interpolation, an estimate."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from landscape._evaluation.interpolate import interpolate
from landscape._evaluation.point import Scene
from landscape._evaluation.points import Run

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_START = 6  # points along each axis to begin with
_GUIDED, _RANDOM = 12, 8  # points added at a time
_MOST = 0.4  # share of the points from which evaluating all of them is no dearer
_HOPELESS = 20.0  # times the tolerance, after `_PATIENCE` points: a chaotic surface
_PATIENCE = 236
_MAX_MARGINS = 2000  # samples


def with_margins(scene: Scene) -> Scene:
    """Have the margin of each sample recorded too, if this is a classification of few samples.

    Accuracy is a step function and interpolates badly; margins are continuous, and tell it.
    """
    is_vector = all(isinstance(y, Tensor) and y.dim() == 1 for _, y in scene.batches)
    classes = is_vector and not any(y.is_floating_point() for _, y in scene.batches)
    return replace(scene, margins=classes and scene.n_samples <= _MAX_MARGINS)


def fill_adaptively(
    run: Run, shape: tuple[int, int], scene: Scene, tolerance: float
) -> tuple[Array, dict[str, str | int | float]]:
    """Evaluate points until the interpolated loss is good to `tolerance` of its range.

    Each round adds points far from the others, where two interpolants disagree, and some at random.
    The error is estimated by the larger of the change since 0.6 of the points, anywhere, and
    twice the largest error at the last 40 points before they were used. Where it does not get
    small, every point is evaluated.

    Returns:
        The table of values, interpolated where not evaluated (metrics are NaN there), and
        attributes that tell the estimate.
    """
    places = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"), axis=-1)
    places = places.reshape(-1, 2)
    generator = np.random.default_rng(abs(scene.seed))  # numpy takes no negative one
    order = _first_points(shape)
    run.fill(order)
    misses: list[float] = []
    while len(order) <= _MOST * len(places) and np.isfinite(run.table[order, 0]).all():
        known = run.table[order, 0]
        now = interpolate(places[order], known, places)
        half = order[: int(0.6 * len(order))]
        before = interpolate(places[half], run.table[half, 0], places)
        spread = np.ptp(known) or 1.0
        change = np.abs(now - before).max()
        estimate = float(max(change, 2 * max(misses[-40:], default=np.inf)) / spread)
        if estimate <= tolerance:
            return _filled(run, order, places, scene), {"error_estimate": estimate}
        if len(order) >= _PATIENCE and estimate > _HOPELESS * tolerance:
            break
        rough = interpolate(places[order], known, places, kernel="thin_plate_spline")
        added = _next_points(places, order, np.abs(now - rough), generator)
        run.fill(added, label=f"landscape, {len(order)} points known")
        misses += np.abs(run.table[added, 0] - now[added]).tolist()
        order = np.concatenate([order, added])
    run.fill(np.arange(len(places)))
    return run.table, {"error_estimate": 0.0}


def _first_points(shape: tuple[int, int]) -> Indices:
    rows, columns = (
        np.unique(np.round(np.linspace(0, n - 1, min(_START, n))).astype(int)) for n in shape
    )
    first = (rows[:, None] * shape[1] + columns).ravel()
    centre = (shape[0] // 2) * shape[1] + shape[1] // 2  # the model itself is always evaluated
    return np.append(first[first != centre], centre)


def _next_points(
    places: Array, order: Indices, doubt: Array, generator: np.random.Generator
) -> Indices:
    """Far from what is known, where in doubt; then some at random, for an honest estimate."""
    away = cdist(places, places[order]).min(1)
    weight = doubt + 1e-3 * doubt.max() + 1e-300  # where there is no doubt at all, distance decides
    chosen: list[int] = []
    for _ in range(min(_GUIDED, len(places) - len(order))):
        best = int(np.argmax(away * weight))
        if away[best] == 0:
            break
        chosen.append(best)
        away = np.minimum(away, cdist(places, places[[best]])[:, 0])
    left = np.setdiff1d(np.arange(len(places)), np.append(order, chosen))
    random = generator.choice(left, size=min(_RANDOM, len(left)), replace=False)
    return np.append(np.array(chosen, dtype=np.int64), random)


def _filled(run: Run, order: Indices, places: Array, scene: Scene) -> Array:
    """The table with loss, standard error and accuracy interpolated; metrics stay unknown."""
    table = np.full((len(places), len(scene.values)), np.nan)
    names = scene.values
    loss, error, accuracy = (names.index(n) for n in ("loss", "loss_se", "accuracy"))
    smooth = run.table[order][:, [loss, error]]
    if np.isnan(smooth[:, 1]).any():
        table[:, loss] = interpolate(places[order], smooth[:, 0], places)
    else:
        table[:, [loss, error]] = interpolate(places[order], smooth, places)
        table[:, error] = np.maximum(table[:, error], 0)
    margins = run.table[order, len(names) :]
    if scene.margins and np.isfinite(margins).all():
        table[:, accuracy] = (interpolate(places[order], margins, places) > 0).mean(1)
    elif not np.isnan(run.table[order, accuracy]).any():
        direct = interpolate(places[order], run.table[order, accuracy], places)
        table[:, accuracy] = np.clip(direct, 0, 1)
    table[run.done] = run.table[run.done][:, : len(names)]
    return table
