"""What `Probe.measure` and `Probe.evaluate` compute from the features of forward passes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from probes._branches.branches import Branches, BranchLoss, Settings
from probes._branches.potentials import LossName
from probes._branches.rows import LayerFeatures
from probes._branches.targets import Targets, as_distribution
from resonance_toolkit import to_host, widest_float

# Elements of the logits `(branch, row, class)` that are made at once: 64 MB in single precision.
_MOST_LOGITS = 2**24


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy of every branch, `(layer, branch)`; how many targets count, `(layer,)`."""

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    n_targets: NDArray[np.int64]


@torch.no_grad()
def measure_pass(
    branches: Mapping[str, Branches], features: Mapping[str, LayerFeatures], targets: Targets
) -> Measures:
    """Measure every branch on one forward pass; NaN where no target counts."""
    layer_means = []
    n_targets = []
    for name, layer_branches in branches.items():
        layer_mean, n_rows = _measure_layer(layer_branches, features[name], targets)
        layer_means.append(layer_mean)
        n_targets.append(n_rows)

    values = np.stack([mean.double().numpy() for mean in to_host(layer_means)])
    return Measures(values[:, 0], values[:, 1], np.array(n_targets))


def mean_of_passes(passes: list[Measures]) -> Measures:
    """Average over passes, each weighted by how many of its targets count."""
    n_targets = np.stack([measures.n_targets for measures in passes])
    weights = (n_targets / np.maximum(n_targets.sum(0), 1))[..., None]

    # A pass without a target that counts at some layer is NaN there, and weighs nothing.
    losses = np.stack([measures.loss for measures in passes])
    accuracies = np.stack([measures.accuracy for measures in passes])
    is_counted = n_targets[..., None] > 0
    nowhere = ~is_counted.any(0)
    means = [
        np.where(nowhere, np.nan, (np.where(is_counted, values, 0) * weights).sum(0))
        for values in (losses, accuracies)
    ]
    return Measures(means[0], means[1], n_targets.sum(0))


def as_dataset(
    branches: Mapping[str, Branches],
    measures: Measures,
    *,
    alphas: Mapping[str, float],
    step: int,
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Label what was measured; `Probe.measure` says what is in it.

    `attributes`: the provenance of the result, to which facts about the weights are added.
    """
    settings = next(iter(branches.values())).settings
    is_active = np.arange(settings.n) >= settings.n_static
    widths = [layer_branches.width for layer_branches in branches.values()]

    dims = ("layer", "branch")
    layer_names = np.array(list(branches), dtype=str)
    return xr.Dataset(
        {
            "loss": (dims, measures.loss, {"long_name": "mean loss of a branch, before alpha"}),
            "accuracy": (dims, measures.accuracy, {"long_name": "accuracy of a branch"}),
            "alpha": ("layer", list(alphas.values()), {"long_name": "auxiliary strength"}),
        },
        coords={
            "layer": ("layer", layer_names, {"long_name": "name of the module attached to"}),
            "branch": ("branch", range(settings.n), {"long_name": "branch"}),
            "width": ("layer", widths, {"long_name": "features"}),
            "trained": ("branch", is_active, {"long_name": "whether the branch is active"}),
            "step": ((), step, {"long_name": "losses made before"}),
        },
        attrs={
            **attributes,
            "n_branch_parameters": sum(layer.n_parameters for layer in branches.values()),
            "orthogonality_error": max(layer.orthogonality_error for layer in branches.values()),
        },
    )


def describe_settings(settings: Settings) -> dict[str, Any]:
    """List the settings of branches that a result should name."""
    return {
        "n": settings.n,
        "active": settings.active,
        "classes": settings.classes,
        "loss": settings.loss,
        "init": settings.init,
        "method": settings.method,
        "seed": settings.seed,
    }


def _measure_layer(
    branches: Branches, features: LayerFeatures, targets: Targets
) -> tuple[Tensor, int]:
    """Loss and accuracy `(2, branch)` of one layer, the mean over its calls; also its rows."""
    measures = []
    n_rows = 0
    for call in features.calls:
        placed_features = call.to(branches.summed.device, branches.precision)
        rows, row_targets = features.rows(placed_features, targets)
        n_rows = len(rows)

        chunks = [
            _measure_branches(rows, row_targets, weights.to(rows), branches.settings)
            for weights in branches.chunks()
        ]
        measures.append(torch.cat(chunks, dim=1))

    return torch.stack(measures).mean(0), n_rows


def _measure_branches(
    rows: Tensor, row_targets: Tensor, weights: Tensor, settings: Settings
) -> Tensor:
    """Loss and accuracy `(2, branch)` of some branches, in chunks that fit into memory."""
    n_branches, n_classes, _ = weights.shape
    if not isinstance(settings.loss, str):
        # Only the callable knows how rows are averaged: it sees all of them, of one branch.
        step = max(1, _MOST_LOGITS // max(1, len(rows) * n_classes))
        parts = [_measure_chunk(rows, row_targets, w, settings) for w in weights.split(step)]
        return torch.cat(parts, dim=1)

    rows_at_once = max(1, _MOST_LOGITS // (n_branches * n_classes))
    if len(rows) <= rows_at_once:
        return _measure_chunk(rows, row_targets, weights, settings)

    total = rows.new_zeros(2, n_branches, dtype=widest_float(rows.device))
    row_chunks = zip(rows.split(rows_at_once), row_targets.split(rows_at_once), strict=True)
    for some_rows, some_targets in row_chunks:
        total += _measure_chunk(some_rows, some_targets, weights, settings) * len(some_rows)
    return total / len(rows)


def _measure_chunk(
    rows: Tensor, row_targets: Tensor, weights: Tensor, settings: Settings
) -> Tensor:
    distribution = as_distribution(row_targets, settings.classes, rows.dtype)
    logits = torch.einsum("rd,kcd->krc", rows, weights)

    loss = _mean_losses(logits, row_targets, distribution, settings.loss)
    accuracy = _accuracies(logits, distribution).to(loss)
    if not _are_shares(row_targets):
        accuracy = torch.full_like(accuracy, torch.nan)
    return torch.stack([loss, accuracy])


def _are_shares(row_targets: Tensor) -> bool:
    """Tell whether targets say which classes are right: real numbers do not, nor does one alone."""
    if not row_targets.is_floating_point():
        return True
    return row_targets.shape[-1] > 1 and bool(((row_targets >= 0) & (row_targets <= 1)).all())


def _mean_losses(
    logits: Tensor, row_targets: Tensor, distribution: Tensor, loss: LossName | BranchLoss
) -> Tensor:
    """Mean loss `(branch,)` of logits `(branch, row, class)`."""
    if loss == "bce":
        targets = distribution.expand_as(logits)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return losses.mean((1, 2))
    if loss == "ce":
        return -(distribution * logits.log_softmax(-1)).sum(-1).mean(1)

    assert callable(loss)
    return torch.stack([loss(branch_logits, row_targets) for branch_logits in logits])


def _accuracies(logits: Tensor, distribution: Tensor) -> Tensor:
    """Share of rows `(branch,)` whose largest logit is at a class of largest target."""
    predictions = logits.argmax(-1, keepdim=True)
    predicted_targets = distribution.expand_as(logits).gather(-1, predictions)[..., 0]

    is_hit = predicted_targets == distribution.amax(1)
    return is_hit.to(logits.dtype).mean(1)
