"""What `Probe.fit` does around its fits: checks, one fit for each layer, and the result."""

from collections.abc import Mapping
from typing import get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from probes._branches.branches import Branches, Settings
from probes._branches.linear_fit import WIDEST_RIDGE, FitMethod, LinearFit, LogisticFit, RidgeFit
from probes._branches.measure import PassRows
from probes._branches.share_interval import share_interval
from resonance_toolkit import (
    Batches,
    check_choice,
    check_no_nan,
    check_not_negative,
    check_positive,
    name_of,
)


def new_fits(
    branches: Mapping[str, Branches], method: FitMethod, penalty: float
) -> dict[str, LinearFit]:
    """Make an empty fit for each layer.

    Raises:
        ValueError: If an argument does not fit, or these branches cannot be fitted so.
    """
    check_choice("method", method, get_args(FitMethod))
    settings = next(iter(branches.values())).settings
    _check_settings(settings, method)

    if method == "ridge":
        penalty = check_not_negative("penalty", penalty)
        for name, layer_branches in branches.items():
            _check_width(name, layer_branches.width)
        return {name: RidgeFit(settings.classes, penalty) for name in branches}

    penalty = check_positive("penalty", penalty)  # separable data have no optimum without
    assert isinstance(settings.loss, str)
    return {name: LogisticFit(settings.classes, penalty, settings.loss) for name in branches}


def add_rows(fits: Mapping[str, LinearFit], rows: PassRows) -> None:
    """Give each layer's fit the rows of a pass, of all calls that count."""
    for name, calls in rows.items():
        for features, row_targets in calls:
            fits[name].add(features[:, :-1], row_targets)  # the last is the 1 for the bias


def solve_fits(fits: Mapping[str, LinearFit], batches: Batches) -> dict[str, Tensor]:
    """Solve all layers' fits; `batches`, what they were given, are looked at if one fails.

    Raises:
        ValueError: If a layer has no rows, or its features or targets are not finite.
    """
    weights = {}
    for name, fit in fits.items():
        if fit.n_rows == 0:
            raise ValueError(f"`data`: expected targets that count at layer {name!r}, got none")

        weight = fit.solve()
        if not bool(weight.isfinite().all()):
            check_no_nan(batches)
            raise ValueError(f"`layers` at {name!r}: expected features that are finite numbers")
        weights[name] = weight
    return weights


def set_weights(branches: Mapping[str, Branches], weights: Mapping[str, Tensor]) -> None:
    """Write fitted weights `(class, width + 1)` into the one branch of each layer."""
    with torch.no_grad():
        for name, weight in weights.items():
            active = branches[name].active
            assert active is not None
            active.copy_(weight[None])


def as_accuracies(evaluation: xr.Dataset, level: float) -> xr.Dataset:
    """Keep what a fit decides of what single branches gave in `Probe.evaluate`; add intervals."""
    single = evaluation[["loss", "accuracy", "n_targets"]].isel(branch=0)
    single = single.drop_vars(["branch", "trained", "step"])

    accuracy = single["accuracy"].values
    low, high = share_interval(accuracy, single["n_targets"].values, level)
    return single.assign(
        accuracy_low=("layer", np.asarray(low), {"long_name": "lower end of its interval"}),
        accuracy_high=("layer", np.asarray(high), {"long_name": "upper end of its interval"}),
    )


def _check_settings(settings: Settings, method: FitMethod) -> None:
    if not settings.listen_only or settings.n != 1:
        raise ValueError(
            "`fit`: expected one listen-only branch per layer, because there is one best fit, got "
            f"n={settings.n} with listen_only={settings.listen_only}; attach another probe with "
            "n=1, listen_only=True"
        )
    if method == "logistic" and not isinstance(settings.loss, str):
        raise ValueError(
            "`method`: 'logistic' needs loss='bce' or 'ce' in attach, got "
            f"{name_of(settings.loss)}; 'ridge' does without"
        )


def _check_width(layer: str, width: int) -> None:
    if width > WIDEST_RIDGE:
        raise ValueError(
            f"`method`: 'ridge' keeps width^2 numbers, at most {WIDEST_RIDGE}^2, got width {width} "
            f"at layer {layer!r}; attach with pool='mean', or fit by method='logistic'"
        )
