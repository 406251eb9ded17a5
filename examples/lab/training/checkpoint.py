"""An unfinished run on disk: weights, optimizer, branches, and what was measured."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xarray as xr

from lab.results.files import read_state
from lab.results.publish import write_atomically
from lab.training.sharding import gathered, load

if TYPE_CHECKING:
    from lab.training.recipe import Recipe
    from lab.training.train import Run

_PARTS = ("recipe", "model", "optimizer", "probe", "epochs", "traces", "seen", "step")


def save(run: Run, path: Path) -> None:
    """Write the state between two epochs, whole or not at all; only the first process does."""
    state = {
        "recipe": _identity(run.recipe),
        "model": gathered(run.backbone.state_dict()),
        "optimizer": gathered(run.optimizer.state_dict()),
        "probe": run.probe.state_dict() if run.probe else None,
        "epochs": run.epochs,
        "traces": [trace.to_dict() for trace in run.traced()],
        "seen": {epoch: seen.to_dict() for epoch, seen in run.seen.items()},
        "step": run.trace.step if run.trace else 0,
    }
    if run.accelerator.is_main_process:
        write_atomically({path: lambda temporary: torch.save(state, temporary)})


def restore(run: Run, path: Path) -> None:
    """Go on from a saved state, if there is one.

    Raises:
        ValueError: If it is of another recipe.
    """
    state = read_state(path, having=_PARTS)
    if state is None:
        return
    mine = _identity(run.recipe)
    for name, saved in state["recipe"].items():
        if name not in mine or saved != mine[name]:
            raise ValueError(
                f"`checkpoint`: {path.name} is of another recipe: `{name}` is {saved!r} there, "
                f"{mine.get(name)!r} here"
            )
    load(run.backbone, run.optimizer, state["model"], state["optimizer"])
    if run.probe is not None:
        run.probe.load_state_dict(state["probe"])
    run.epochs = state["epochs"]
    run.traces = [xr.Dataset.from_dict(trace) for trace in state["traces"]]
    run.seen = {epoch: xr.Dataset.from_dict(seen) for epoch, seen in state["seen"].items()}
    if run.trace is not None:
        run.trace.step = state["step"]


def _identity(recipe: Recipe) -> dict[str, Any]:
    """The settings that decide a run: where the data lie does not, nor list or tuple."""
    settings = {name: value for name, value in asdict(recipe).items() if name != "data"}
    same: dict[str, Any] = json.loads(json.dumps(settings))
    return same
