"""An unfinished run on disk: weights, optimizer, branches, and what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
import xarray as xr

from lab.cache import read_state
from lab.report import write_atomically
from lab.sharding import gathered, load

if TYPE_CHECKING:
    from lab.train import Run


def save(run: Run, path: Path) -> None:
    """Write the state between two epochs, whole or not at all; only the first process does."""
    traces = [*run.traces, *([run.trace.to_dataset()] if run.trace else [])]
    state = {
        "model": gathered(run.backbone.state_dict()),
        "optimizer": gathered(run.optimizer.state_dict()),
        "probe": run.probe.state_dict() if run.probe else None,
        "epochs": run.epochs,
        "traces": [trace.to_dict() for trace in traces],
        "seen": {epoch: seen.to_dict() for epoch, seen in run.seen.items()},
        "step": run.trace.step if run.trace else 0,
    }
    if run.accelerator.is_main_process:
        write_atomically({path: lambda temporary: torch.save(state, temporary)})


def restore(run: Run, path: Path) -> None:
    """Go on from a saved state, if there is one; it must be of the same recipe."""
    state = read_state(path)
    if state is None:
        return
    load(run.backbone, run.optimizer, state["model"], state["optimizer"])
    if run.probe is not None:
        run.probe.load_state_dict(state["probe"])
    run.epochs = state["epochs"]
    run.traces = [xr.Dataset.from_dict(trace) for trace in state["traces"]]
    run.seen = {epoch: xr.Dataset.from_dict(seen) for epoch, seen in state["seen"].items()}
    if run.trace is not None:
        run.trace.step = state["step"]
