import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gradients._recorders.inner_products import added, inner_products
from gradients._recorders.layers import parameters_by_layer, sizes_of
from gradients._checks import check_model
from resonance_toolkit import AtMost, preserving, provenance, take


def initial_norm(
    model: nn.Module,
    data: Any,
    branches: nn.Module | int | None = None,
    *,
    loss_fn: Callable[[Any, Any], Tensor] = F.cross_entropy,
    samples: int | None = AtMost(500),
    batch_size: int = 100,
    seed: int = 0,
) -> xr.Dataset:
    """Measure the norm of the main loss's gradient, and what counting branches does to it.

    Branches beside a model do not change its output, so the main loss has no gradient there: the
    norm over backbone and branches is the norm over the backbone. Only the root mean square per
    parameter falls, by the dilution factor `sqrt(backbone / everything)`, since more parameters are
    counted. Table 4 of the asymmetric-training paper reports reductions of about that size for
    its transformer.

    Args:
        model: The backbone, before training, in the mode to be measured. Left as it was.
        data: As for `resonance.take`.
        branches: What is attached: a module, whose parameters, frozen or not, are counted, or
            the number of their weights.
        loss_fn: Maps `(outputs, targets)` to the mean loss of one batch.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples in a forward pass.
        seed: Decides which samples, and what dropout draws.

    Returns:
        Dataset with `grad_norm (layer)`; `norm_backbone`, `norm_everything`: over the model, and
        over model and branches; `rms_backbone`, `rms_everything`: the same divided by the root of
        the numbers of parameters, `n_backbone` and `n_everything`; `dilution`: the factor between
        the two; `reduction`: its effect in percent; `loss`.

    Raises:
        ValueError: If `branches` is neither a module nor a number of weights, the loss is no scalar
            that depends on the model, or the model is frozen.

    Examples:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> data = torch.ones(4, 1), model(torch.ones(4, 1)).detach() - 1
        >>> found = initial_norm(model, data, 3, loss_fn=F.mse_loss, samples=None)
        >>> found["norm_everything"].item(), found["rms_everything"].item()  # 2 and 2 / sqrt(1 + 3)
        (2.0, 1.0)
    """
    check_model(model)
    others = list(branches.parameters()) if isinstance(branches, nn.Module) else []
    n_branches = _count(branches, others)
    parameters, layers, owners = parameters_by_layer(model)
    batches = take(data, samples, seed, model=model, batch_size=batch_size)
    n_samples = sum(len(tree_leaves(targets)[0]) for _, targets in batches)
    inputs = [p for p in [*parameters, *others] if p.requires_grad]
    if not inputs:
        raise ValueError("`model`: expected parameters that require gradients, got none")
    loss, sums = 0.0, dict.fromkeys(inputs)
    with preserving(model):
        torch.manual_seed(seed)
        for x, y in batches:
            value = _scalar(loss_fn(model(x), y)) * (len(tree_leaves(y)[0]) / n_samples)
            loss += value.item()
            found = torch.autograd.grad(value, inputs, allow_unused=True)
            sums = {p: added(sums[p], g) for p, g in zip(inputs, found, strict=True)}
    squares = {p: 0.0 if g is None else inner_products([g]).item() for p, g in sums.items()}
    own = [squares.get(p, 0.0) for p in parameters]
    sizes = sizes_of(parameters, owners)
    attrs = provenance(
        "gradients.initial_norm", model, loss_fn=loss_fn, samples=n_samples, seed=seed
    )
    norms = math.sqrt(sum(own)), math.sqrt(sum(squares.values()))
    counts = sum(sizes), sum(sizes) + n_branches
    scalars = {
        "norm_backbone": (norms[0], "gradient norm over the backbone"),
        "norm_everything": (norms[1], "gradient norm over backbone and branches"),
        "rms_backbone": (norms[0] / math.sqrt(counts[0]), "root mean square over the backbone"),
        "rms_everything": (norms[1] / math.sqrt(counts[1]), "root mean square over everything"),
        "dilution": (math.sqrt(counts[0] / counts[1]), "dilution factor"),
        "reduction": (100 * (math.sqrt(counts[0] / counts[1]) - 1), "change by dilution"),
        "n_backbone": (counts[0], "parameters of the backbone"),
        "n_everything": (counts[1], "parameters of backbone and branches"),
        "loss": (loss, "mean loss"),
    }
    result = xr.Dataset({k: ((), v, {"long_name": name}) for k, (v, name) in scalars.items()})
    result["reduction"].attrs["units"] = "%"
    by_layer = np.sqrt(np.bincount(owners, own, len(layers)))
    result["grad_norm"] = ("layer", by_layer, {"long_name": "gradient norm of the main loss"})
    names = ("layer", np.array(layers, dtype=object), {"long_name": "layer"})
    return result.assign_coords(layer=names).assign_attrs(attrs)


def _count(branches: nn.Module | int | None, parameters: list[nn.Parameter]) -> int:
    if branches is None or isinstance(branches, nn.Module):
        return sum(p.numel() for p in parameters)
    if isinstance(branches, bool) or not isinstance(branches, int) or branches < 0:
        raise ValueError(
            f"`branches`: expected a module, a number of weights or None, got {branches!r}"
        )
    return branches


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"`loss_fn`: expected one number that depends on the model, got {got}")
    return value.reshape(())
