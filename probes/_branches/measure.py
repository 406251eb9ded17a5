"""What `Probe.measure` and `Probe.evaluate` compute from the features of forward passes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from probes._branches.branches import Branches, BranchLoss, Settings
from probes._branches.potentials import LossName
from probes._branches.rows import LayerFeatures
from probes._branches.targets import Targets, as_distribution
from resonance_toolkit import ignore_index_of, widest_float

# Elements of the logits `(branch, row, class)` that are made at once: 64 MB in single precision.
_MOST_LOGITS = 2**24


# Of each layer and each of its calls: features `(row, width)`, and a target for each row.
PassRows: TypeAlias = dict[str, list[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy of every branch, `(layer, branch)`; how many targets count, `(layer,)`.

    `mass (layer,)` is what the loss divides by: the number of targets, or, where classes have
    weights, the sum of theirs.
    """

    loss: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    n_targets: NDArray[np.int64]
    mass: NDArray[np.float64]


def is_mean_of_rows(loss: LossName | BranchLoss) -> bool:
    """Tell whether a loss over many rows follows from those of its parts.

    So it does where the loss is a mean over rows, weighted by class or not, as torch's are. Of
    another callable nobody knows.
    """
    if isinstance(loss, str):
        return True
    if isinstance(loss, nn.Module):
        is_from_torch = type(loss).__module__ == nn.CrossEntropyLoss.__module__
        return is_from_torch and getattr(loss, "reduction", None) == "mean"

    if isinstance(loss, partial):
        is_over_classes = loss.func in (F.cross_entropy, F.nll_loss) and not loss.args
        return is_over_classes and loss.keywords.get("reduction", "mean") == "mean"
    return getattr(loss, "__module__", "") == F.__name__


@torch.no_grad()
def rows_of_pass(
    branches: Mapping[str, Branches], features: Mapping[str, LayerFeatures], targets: Targets
) -> PassRows:
    """Make rows of the features of one forward pass, in the branches' own precision."""
    rows: PassRows = {}
    for name, layer_branches in branches.items():
        layer = features[name]
        device, precision = layer_branches.summed.device, layer_branches.precision
        calls = [layer.rows(call.to(device, precision), targets) for call in layer.calls]
        rows[name] = [(layer_branches.as_inputs(x), row_targets) for x, row_targets in calls]
    return rows


def join_rows(passes: list[PassRows]) -> PassRows:
    """Put the rows of several passes together, as if it had been one."""
    all_rows: PassRows = {}
    for name in passes[0]:
        calls = zip(*(rows[name] for rows in passes), strict=True)
        all_rows[name] = [
            (torch.cat([rows for rows, _ in call]), torch.cat([targets for _, targets in call]))
            for call in calls
        ]
    return all_rows


@torch.no_grad()
def measure_rows(branches: Mapping[str, Branches], rows: PassRows) -> Measures:
    """Measure every branch; NaN where no target counts."""
    layers = [_measure_layer(branches[name], calls) for name, calls in rows.items()]
    losses, accuracies, n_targets, masses = zip(*layers, strict=True)
    return Measures(np.stack(losses), np.stack(accuracies), np.array(n_targets), np.array(masses))


def mean_of_passes(passes: list[Measures]) -> Measures:
    """Average over passes, each weighted by what it divided by."""
    n_targets = np.stack([measures.n_targets for measures in passes])
    masses = np.stack([measures.mass for measures in passes])
    losses = np.stack([measures.loss for measures in passes])
    accuracies = np.stack([measures.accuracy for measures in passes])
    return Measures(
        _weighted_mean(losses, masses),
        _weighted_mean(accuracies, n_targets),
        n_targets.sum(0),
        masses.sum(0),
    )


def _weighted_mean(values: NDArray[Any], weights: NDArray[Any]) -> NDArray[np.float64]:
    """Average `(pass, layer, branch)` over passes; NaN where none has a weight."""
    total = weights.sum(0)
    shares = (weights / np.where(total > 0, total, 1))[..., None]

    # A pass without a target that counts at some layer is NaN there, and weighs nothing.
    is_counted = weights[..., None] > 0
    mean = (np.where(is_counted, values, 0) * shares).sum(0)
    return np.where(is_counted.any(0), mean, np.nan)


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
        **({"listen_only": True} if settings.listen_only else {}),
    }


def _measure_layer(
    branches: Branches, calls: list[tuple[Tensor, Tensor]]
) -> tuple[NDArray[np.float64], NDArray[np.float64], int, float]:
    """Loss and accuracy `(branch,)` of one layer, the mean over its calls; its rows and mass."""
    measures = []
    n_rows = 0
    mass = 0.0
    for rows, row_targets in calls:
        n_rows = len(rows)
        mass = _mass(branches.settings.loss, row_targets)

        chunks = [
            _measure_branches(rows, row_targets, weights.to(rows), branches.settings)
            for weights in branches.chunks()
        ]
        measures.append(torch.cat(chunks, dim=1))

    loss, accuracy = torch.stack(measures).mean(0).cpu().double().numpy()
    return loss, accuracy, n_rows, mass


def _mass(loss: LossName | BranchLoss, row_targets: Tensor) -> float:
    """What a loss divides by: the number of rows, or the sum of the weights of their classes."""
    ignored = None if isinstance(loss, str) else ignore_index_of(loss)
    if ignored is None or row_targets.is_floating_point():
        return float(len(row_targets))

    classes = row_targets[row_targets != ignored]
    keywords = getattr(loss, "keywords", {})
    weight = keywords.get("weight", getattr(loss, "weight", None))
    if weight is None:
        return float(len(classes))
    return float(weight.detach()[classes.to(weight.device)].cpu().double().sum())


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
