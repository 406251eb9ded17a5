"""An unfinished run on disk: weights, optimizer, branches, and what was measured."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xarray as xr

from lab.results.files import read_state, write_atomically
from lab.training.recipe import Recipe
from lab.training.run import Run
from lab.training.sharding import gather_shards, load_shards
from resonance_toolkit import tensor_writer

# The entries of the file. Their names stay, so that runs begun earlier can go on.
_ENTRIES = ("recipe", "model", "optimizer", "probe", "epochs", "traces", "seen", "step")


def save(run: Run, path: Path) -> None:
    """Write the state between two epochs, whole or not at all; only the first process does."""
    # All processes gather, though one writes: gathering needs every shard.
    state = {
        "recipe": _identity(run.recipe),
        "model": gather_shards(run.backbone.state_dict()),
        "optimizer": gather_shards(run.optimizer.state_dict()),
        "probe": run.probe.state_dict() if run.probe else None,
        "epochs": run.curves,
        "traces": [trace.to_dict() for trace in run.traces()],
        "seen": {epoch: dataset.to_dict() for epoch, dataset in run.attention.items()},
        "step": run.trace.step if run.trace else 0,
    }
    if run.accelerator.is_main_process:
        write_atomically({path: tensor_writer(state)})


def restore(run: Run, path: Path) -> None:
    """Go on from a saved state, if there is one.

    Raises:
        ValueError: If it is of another recipe.
    """
    state = read_state(path, required=_ENTRIES)
    if state is None:
        return

    # Only settings that the file has: one that was added since has its default there.
    settings = _identity(run.recipe)
    for name, saved_value in state["recipe"].items():
        if name not in settings or saved_value != settings[name]:
            raise ValueError(
                f"`checkpoint`: {path.name} is of another recipe: `{name}` is {saved_value!r} "
                f"there, {settings.get(name)!r} here"
            )

    load_shards(run.backbone, run.optimizer, state["model"], state["optimizer"])
    if run.probe is not None:
        run.probe.load_state_dict(state["probe"])

    run.curves = state["epochs"]
    run.earlier_traces = [xr.Dataset.from_dict(trace) for trace in state["traces"]]
    run.attention = {epoch: xr.Dataset.from_dict(data) for epoch, data in state["seen"].items()}
    if run.trace is not None:
        run.trace.step = state["step"]


def _identity(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that decide a run: where the data lie does not, nor list or tuple."""
    settings = {name: value for name, value in asdict(recipe).items() if name != "data"}
    identity: dict[str, Any] = json.loads(json.dumps(settings))
    return identity
