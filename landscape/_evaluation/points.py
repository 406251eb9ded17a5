"""Evaluate many points: here or on an executor, with progress, and resumable."""

import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from landscape._evaluation.checkpoint import Checkpoint
from landscape._evaluation.point import Scene, standing
from landscape._evaluation.problem import identity
from resonance_toolkit import spread

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
_SAVE_EVERY = 2.0  # seconds


class Run:
    """Values at points, filled in piece by piece.

    Args:
        points: Where to evaluate, shape `(point, axis)`.
        work: Gives the values of a piece of points, shape `(point, value)`.
        piece: Points in a piece on an executor, and between two writes.
        checkpoint: Where finished points are kept, if anywhere.
        executor: Takes pieces; None works in this process, point by point.
        n_values: Values at each point.
    """

    def __init__(
        self,
        points: Array,
        work: Callable[[Array], Array],
        *,
        piece: int,
        checkpoint: Checkpoint | None,
        executor: Executor | None,
        n_values: int,
    ) -> None:
        self.points, self.piece = points, piece
        self._work, self._checkpoint, self._executor = work, checkpoint, executor
        self.table = np.full((len(points), n_values), np.nan)
        self.done: NDArray[np.bool_] = np.zeros(len(points), bool)
        if checkpoint is not None:
            self.table, self.done = checkpoint.table, checkpoint.done

    def fill(self, indices: Indices, label: str = "landscape") -> None:
        """Evaluate the points with these indices, but for those that are done."""
        left = indices[~self.done[indices]]
        step = 1 if self._executor is None else self.piece
        pieces = [left[i : i + step] for i in range(0, len(left), step)]
        places = [self.points[piece] for piece in pieces]
        unit = "point" if step == 1 else "piece"
        results = spread(self._work, places, executor=self._executor, label=label, unit=unit)
        unsaved, saved_at = 0, time.monotonic()
        try:
            for i, values in results:
                self.table[pieces[i]] = values
                self.done[pieces[i]] = True
                unsaved += len(values)
                if unsaved >= self.piece or time.monotonic() - saved_at > _SAVE_EVERY:
                    self._save()
                    unsaved, saved_at = 0, time.monotonic()
        finally:
            del results  # cancels what an executor has not begun
            if unsaved:
                self._save()

    def check_finished(self, names: list[str]) -> None:
        """Raise if a finished point of a checkpoint has other values now.

        What a forward, loss or metric computes is not among the settings that are compared.
        """
        finished = np.flatnonzero(self.done)[:1]
        if not len(finished):
            return
        now, then = self._work(self.points[finished])[0], self.table[finished[0]]
        for name, new, old in zip(names, now.tolist(), then.tolist(), strict=False):
            # Another machine may round otherwise; then accuracy may change by a whole sample.
            same = name == "accuracy" or np.isclose(new, old, rtol=1e-5, atol=0, equal_nan=True)
            if not same:
                raise ValueError(
                    "`checkpoint`: was made with another loss, metric or model: at its first "
                    f"point `{name}` is {old}, now {new}. Delete it or give another path"
                )

    def _save(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.save()


@contextmanager
def running(
    scene: Scene,
    points: Array,
    *,
    piece: int,
    checkpoint: str | Path | None = None,
    executor: Executor | None = None,
    settings: dict[str, Any] | None = None,
) -> Iterator[Run]:
    """Give a `Run` over the points; see there. `settings` tell one checkpoint from another."""
    store = None
    if checkpoint is not None:
        what = identity(scene) | (settings or {}) | {"points": points.tobytes().hex()}
        store = Checkpoint(checkpoint, what, (len(points), scene.columns))
    make = partial(
        Run, points, piece=piece, checkpoint=store, executor=executor, n_values=scene.columns
    )
    if executor is not None:
        run = make(partial(_evaluate, _pickled(scene)))
        run.check_finished(scene.values)
        yield run
        return
    with standing(scene) as at:
        run = make(lambda places: np.array([at(place) for place in places.tolist()]))
        run.check_finished(scene.values)
        yield run


def _evaluate(payload: bytes, places: Array) -> Array:
    scene = pickle.loads(payload)
    with standing(scene) as at:
        return np.array([at(place) for place in places.tolist()])


def _pickled(scene: Scene) -> bytes:
    # To bytes here: multiprocessing would put the tensors in shared memory instead, and workers
    # that move their weights would move the user's.
    scene = replace(scene, threads=scene.threads or torch.get_num_threads())
    try:
        return pickle.dumps(scene)
    except Exception as error:
        try:
            cloudpickle = import_module("cloudpickle")  # handles lambdas; comes with Dask
        except ImportError:
            raise TypeError(
                "`executor`: expected a model, loss and metrics that can be pickled (functions of "
                f"a module, no lambdas): {error}"
            ) from error
        return bytes(cloudpickle.dumps(scene))
