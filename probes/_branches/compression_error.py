"""What `Probe.compression_error` computes from the features of one forward pass."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn

from probes._branches.branches import Branches
from probes._branches.closed_form_loss import compressed_loss
from probes._branches.exact_loss import exact_loss
from probes._branches.rows import LayerFeatures
from probes._branches.targets import Targets
from resonance_toolkit import provenance, to_host


def compression_error(
    branches: Mapping[str, Branches],
    features: Mapping[str, LayerFeatures],
    targets: Targets,
    model: nn.Module,
) -> xr.Dataset:
    """Compare the closed form with exact static branches; `Probe.compression_error` says more."""
    settings = next(iter(branches.values())).settings
    if settings.loss != "bce":
        raise ValueError("`loss`: the closed form exists for 'bce' only")
    if settings.n_static == 0:
        raise ValueError("`active`: expected some static branches, all are active")

    cosines = []
    relative_errors = []
    for name, layer_branches in branches.items():
        # Of a layer that ran several times, the last call.
        exact, closed = _gradients(layer_branches, features[name], targets)
        cosines.append(F.cosine_similarity(exact, closed, dim=-1))
        relative_errors.append((exact - closed).norm(dim=-1) / exact.norm(dim=-1))

    on_host = [values.double().numpy() for values in to_host([*cosines, *relative_errors])]
    cosine = np.stack(on_host[: len(cosines)])
    relative_error = np.stack(on_host[len(cosines) :])

    n_samples = len(targets.values)
    dims = ("layer", "sample")
    layer_names = np.array(list(branches), dtype=str)
    return xr.Dataset(
        {
            "cosine": (dims, cosine, {"long_name": "cosine of closed form with exact"}),
            "relative_error": (dims, relative_error, {"long_name": "relative gradient error"}),
        },
        coords={
            "layer": ("layer", layer_names, {"long_name": "name of the module attached to"}),
            "sample": ("sample", range(n_samples), {"long_name": "sample of the batch"}),
        },
        attrs=provenance(
            "probes.Probe.compression_error",
            model,
            n_samples=n_samples,
            targets=targets.meaning(settings.loss),
            n_static=settings.n_static,
            classes=settings.classes,
            init=settings.init,
            seed=settings.seed,
        ),
    )


@torch.enable_grad()
def _gradients(
    branches: Branches, features: LayerFeatures, targets: Targets
) -> tuple[Tensor, Tensor]:
    """Exact and closed-form gradients with respect to the features, flat per sample."""
    latest_call = features.calls[-1].detach()
    h = latest_call.to(branches.summed.device, branches.precision).requires_grad_()
    rows, row_targets = features.rows(h, targets)

    # Some branches at a time: all of them at once may not fit into memory.
    exact_gradient = torch.zeros_like(h)
    gram = h.new_zeros(branches.width, branches.width)
    for chunk in branches.static_chunks():
        weights = chunk.to(h)
        gram += torch.einsum("kcd,kce->de", weights, weights)
        loss = exact_loss(rows, weights, weights.sum(0), row_targets, "bce")
        exact_gradient += torch.autograd.grad(loss, h, retain_graph=True)[0]

    summed = branches.summed.to(h)
    closed_loss = compressed_loss(
        rows, gram, summed, row_targets, branches.n_static, branches.excess
    )
    closed_gradient = torch.autograd.grad(closed_loss, h)[0]
    return exact_gradient.flatten(1), closed_gradient.flatten(1)
