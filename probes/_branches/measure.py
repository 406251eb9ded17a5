from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from probes._branches.branches import Branches
from probes._branches.exact_loss import as_distribution
from probes._branches.targets import rows_of
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
    """Loss and accuracy of every branch; the public `Probe.measure` says more."""
    measured = np.stack([_of_layer(branches[name], features[name], y) for name in branches], axis=1)
    settings = next(iter(branches.values())).settings
    active = np.arange(settings.n) >= settings.n - settings.active
    dims = ("layer", "branch")
    return xr.Dataset(
        {
            "loss": (dims, measured[0], {"long_name": "mean loss of a branch, before alpha"}),
            "accuracy": (dims, measured[1], {"long_name": "accuracy of a branch"}),
            "alpha": ("layer", list(alphas.values()), {"long_name": "auxiliary strength"}),
        },
        coords={
            "layer": ("layer", list(branches), {"long_name": "attachment point"}),
            "branch": ("branch", range(settings.n), {"long_name": "branch"}),
            "width": ("layer", [b.width for b in branches.values()], {"long_name": "features"}),
            "trained": ("branch", active, {"long_name": "whether the branch is active"}),
            "step": ((), step, {"long_name": "losses made before"}),
        },
        attrs=provenance(
            "probes.Probe.measure",
            model,
            n=settings.n,
            active=settings.active,
            classes=settings.classes,
            branch_loss=settings.loss,
            init=settings.init,
            method=settings.method,
            seed=settings.seed,
            n_branch_parameters=sum(b.n_parameters for b in branches.values()),
            orthogonality_error=max(b.orthogonality_error for b in branches.values()),
        ),
    )


def _of_layer(branches: Branches, calls: list[Tensor], y: Tensor) -> np.ndarray:
    results = []
    for features in calls:
        rows, goals = rows_of(y, features.to(branches.summed.device, branches.precision))
        truth = as_distribution(goals, branches.settings.classes, rows.dtype)
        pieces = [_of_chunk(weights, rows, goals, truth, branches) for weights in branches.chunks()]
        results.append(torch.cat(pieces, dim=1))
    return torch.stack(results).mean(0).double().cpu().numpy()


def _of_chunk(
    weights: Tensor, rows: Tensor, goals: Tensor, truth: Tensor, branches: Branches
) -> Tensor:
    """Loss and accuracy `(2, branch)` of some branches."""
    logits = torch.einsum("rd,kcd->krc", rows, weights.to(rows))
    kind = branches.settings.loss
    if kind == "bce":
        target = truth.expand_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none").mean((1, 2))
    elif kind == "ce":
        loss = -(truth * logits.log_softmax(-1)).sum(-1).mean(1)
    else:
        assert callable(kind)
        loss = torch.stack([kind(branch, goals) for branch in logits])
    hit = truth.expand_as(logits).gather(-1, logits.argmax(-1, keepdim=True))[..., 0]
    return torch.stack([loss, (hit == truth.amax(1)).to(loss).mean(1)])
