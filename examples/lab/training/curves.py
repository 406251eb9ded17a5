"""A run's measurements as one Dataset."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from resonance_toolkit import provenance

if TYPE_CHECKING:
    from lab.training.train import Run

_NAMES = {
    "train_loss": "main loss while training",
    "auxiliary_loss": "auxiliary loss while training, times alpha",
    "train_accuracy": "accuracy while training",
    "test_loss": "test loss",
    "test_accuracy": "test accuracy",
    "learning_rate": "learning rate",
}


def assemble(run: Run) -> xr.Dataset:
    """Label everything; epochs that a diverged run did not reach are NaN."""
    total = run.recipe.epochs
    missing = [float("nan")] * (total - len(run.epochs))
    variables: dict[str, Any] = {}
    for name, text in _NAMES.items():
        values = np.array([epoch[name] for epoch in run.epochs] + missing, dtype=float)
        variables[name] = ("epoch", values, {"long_name": text})
    if run.probe is None or not run.probe.connected:
        variables["auxiliary_loss"][1][:] = float("nan")
    variables["diverged"] = ((), int(bool(missing)), {"long_name": "whether the loss diverged"})
    coords = {"epoch": ("epoch", np.arange(1, total + 1), {"long_name": "epoch"})}
    settings = asdict(run.recipe) | {"data": Path(run.recipe.data).stem}
    settings["train_images"], settings["test_images"] = (
        len(run.images.y_train),
        len(run.images.y_test),
    )
    settings["mixed_precision"] = run.accelerator.mixed_precision
    attrs = provenance("lab.train", run.backbone, **settings)
    return xr.Dataset(variables, coords, attrs).assign(_traced(run)).assign(_seen(run))


def _traced(run: Run) -> xr.Dataset:
    pieces = run.traced()
    if not pieces:
        return xr.Dataset()
    whole = xr.concat(pieces, dim="step", combine_attrs="drop_conflicts", data_vars="minimal")
    names = {"layer": "traced_layer", "n_parameters": "traced_parameters"}
    return whole.rename({old: new for old, new in names.items() if old in whole.variables})


def _seen(run: Run) -> xr.Dataset:
    if not run.seen:
        return xr.Dataset()
    epochs = xr.Variable("seen_epoch", list(run.seen), {"long_name": "epoch"})
    return xr.concat(list(run.seen.values()), dim=epochs, combine_attrs="drop_conflicts")
