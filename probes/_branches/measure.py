"""What `Probe.measure` computes from the features of one forward pass."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from probes._branches.branches import Branches, BranchLoss
from probes._branches.potentials import LossName
from probes._branches.targets import as_distribution, flatten_positions
from resonance_toolkit import provenance


@torch.no_grad()
def measure(
    branches: Mapping[str, Branches],
    features: Mapping[str, list[Tensor]],
    y: Tensor,
    alphas: Mapping[str, float],
    step: int,
    model: nn.Module | None,
) -> xr.Dataset:
    """Measure loss and accuracy of every branch; the public `Probe.measure` says more."""
    layer_measures = [_measure_layer(branches[name], features[name], y) for name in branches]
    loss, accuracy = np.stack(layer_measures, axis=1)

    settings = next(iter(branches.values())).settings
    is_active = np.arange(settings.n) >= settings.n_static
    widths = [layer_branches.width for layer_branches in branches.values()]

    dims = ("layer", "branch")
    layer_names = np.array(list(branches), dtype=str)
    return xr.Dataset(
        {
            "loss": (dims, loss, {"long_name": "mean loss of a branch, before alpha"}),
            "accuracy": (dims, accuracy, {"long_name": "accuracy of a branch"}),
            "alpha": ("layer", list(alphas.values()), {"long_name": "auxiliary strength"}),
        },
        coords={
            "layer": ("layer", layer_names, {"long_name": "name of the module attached to"}),
            "branch": ("branch", range(settings.n), {"long_name": "branch"}),
            "width": ("layer", widths, {"long_name": "features"}),
            "trained": ("branch", is_active, {"long_name": "whether the branch is active"}),
            "step": ((), step, {"long_name": "losses made before"}),
        },
        attrs=provenance(
            "probes.Probe.measure",
            model,
            n_samples=len(y),
            n=settings.n,
            active=settings.active,
            classes=settings.classes,
            loss=settings.loss,
            init=settings.init,
            method=settings.method,
            seed=settings.seed,
            n_branch_parameters=sum(layer.n_parameters for layer in branches.values()),
            orthogonality_error=max(layer.orthogonality_error for layer in branches.values()),
        ),
    )


def _measure_layer(branches: Branches, calls: list[Tensor], y: Tensor) -> NDArray[np.float64]:
    """Loss and accuracy `(2, branch)` of one layer, the mean over its calls."""
    settings = branches.settings

    measures = []
    for features in calls:
        placed_features = features.to(branches.summed.device, branches.precision)
        rows, row_targets = flatten_positions(placed_features, y)
        distribution = as_distribution(row_targets, settings.classes, rows.dtype)

        chunks = []
        for weights in branches.chunks():
            logits = torch.einsum("rd,kcd->krc", rows, weights.to(rows))
            loss = _mean_losses(logits, row_targets, distribution, settings.loss)
            accuracy = _accuracies(logits, distribution).to(loss)
            chunks.append(torch.stack([loss, accuracy]))
        measures.append(torch.cat(chunks, dim=1))

    mean: NDArray[np.float64] = torch.stack(measures).mean(0).double().cpu().numpy()
    return mean


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
