"""A run's measurements as one Dataset."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from lab.training.run import Run
from resonance_toolkit import provenance

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
    n_epochs = run.recipe.epochs
    epochs_not_reached = [float("nan")] * (n_epochs - len(run.curves))

    variables: dict[str, Any] = {}
    for name, text in _NAMES.items():
        values = np.array([epoch[name] for epoch in run.curves] + epochs_not_reached, dtype=float)
        if name == "auxiliary_loss" and (run.probe is None or not run.probe.connected):
            values[:] = np.nan
        variables[name] = ("epoch", values, {"long_name": text})
    variables["diverged"] = (
        (),
        int(bool(epochs_not_reached)),
        {"long_name": "whether the loss diverged"},
    )

    settings = asdict(run.recipe) | {
        "data": Path(run.recipe.data).stem,
        "train_images": len(run.images.y_train),
        "test_images": len(run.images.y_test),
        "mixed_precision": run.accelerator.mixed_precision,
    }
    curves = xr.Dataset(
        variables,
        coords={"epoch": ("epoch", np.arange(1, n_epochs + 1), {"long_name": "epoch"})},
        attrs=provenance("lab.train", run.backbone, **settings),
    )
    return curves.assign(_join_traces(run)).assign(_join_attention(run))


def _join_traces(run: Run) -> xr.Dataset:
    pieces = run.traces()
    if not pieces:
        return xr.Dataset()

    trace = xr.concat(pieces, dim="step", combine_attrs="drop_conflicts", data_vars="minimal")

    # Attention has a dimension `layer`, too, with other layers.
    names = {"layer": "traced_layer", "n_parameters": "traced_parameters"}
    return trace.rename({old: new for old, new in names.items() if old in trace.variables})


def _join_attention(run: Run) -> xr.Dataset:
    if not run.attention:
        return xr.Dataset()

    epochs = xr.Variable("seen_epoch", list(run.attention), {"long_name": "epoch"})
    return xr.concat(list(run.attention.values()), dim=epochs, combine_attrs="drop_conflicts")
