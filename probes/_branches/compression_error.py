from collections.abc import Mapping

import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from probes._branches.branches import Branches
from probes._branches.closed_form_loss import compressed_loss
from probes._branches.exact_loss import exact_loss
from probes._branches.targets import rows_of
from resonance_toolkit import provenance


def compression_error(
    branches: Mapping[str, Branches],
    features: Mapping[str, list[Tensor]],
    y: Tensor,
    model: nn.Module,
) -> xr.Dataset:
    """Closed form against exact static branches; `Probe.compression_error` says more."""
    settings = next(iter(branches.values())).settings
    if settings.loss != "bce":
        raise ValueError("`loss`: the closed form exists for 'bce' only")
    if settings.active == settings.n:
        raise ValueError("`active`: expected some static branches, all are active")
    pairs = [_gradients(branches[name], features[name][-1], y) for name in branches]
    cosine = torch.stack([F.cosine_similarity(a, b, dim=-1) for a, b in pairs])
    error = torch.stack([(a - b).norm(dim=-1) / a.norm(dim=-1) for a, b in pairs])
    dims = ("layer", "sample")
    return xr.Dataset(
        {
            "cosine": (dims, _array(cosine), {"long_name": "cosine of closed form with exact"}),
            "relative_error": (dims, _array(error), {"long_name": "relative gradient error"}),
        },
        coords={
            "layer": ("layer", list(branches), {"long_name": "attachment point"}),
            "sample": ("sample", range(cosine.shape[1]), {"long_name": "sample of the batch"}),
        },
        attrs=provenance(
            "probes.Probe.compression_error",
            model,
            n_static=settings.n - settings.active,
            classes=settings.classes,
            init=settings.init,
            seed=settings.seed,
        ),
    )


@torch.enable_grad()
def _gradients(branches: Branches, features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Exact and closed-form gradients with respect to the features, flat per sample."""
    h = features.detach().to(branches.summed.device, branches.precision).requires_grad_()
    rows, goals = rows_of(y, h)
    gram = torch.zeros(branches.width, branches.width).to(h)
    exact = torch.zeros_like(h)
    for weights in (w.to(h) for w in _static(branches)):
        gram += torch.einsum("kcd,kce->de", weights, weights)
        loss = exact_loss(rows, weights, weights.sum(0), goals, "bce")
        exact += torch.autograd.grad(loss, h, retain_graph=True)[0]
    summed, n, excess = branches.summed.to(h), branches.n_static, branches.excess
    closed = compressed_loss(rows, gram, summed, goals, n, excess)
    return exact.flatten(1), torch.autograd.grad(closed, h)[0].flatten(1)


def _static(branches: Branches) -> list[Tensor]:
    left, found = branches.n_static, []
    for weights in branches.chunks():
        if left > 0:
            found.append(weights[:left].detach())
        left -= len(weights)
    return found


def _array(values: Tensor) -> object:
    return values.detach().double().cpu().numpy()
