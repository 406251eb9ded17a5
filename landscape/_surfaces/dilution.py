import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._directions.parameters import (
    Extra,
    count_tensors,
    module_by_tensor_name,
    tensors_to_move,
)
from landscape._directions.vectors import Normalisation
from landscape._evaluation.adaptive import Method
from landscape._evaluation.problem import BatchNormStatistics
from landscape._surfaces.axes import Directions, either_spelling
from landscape._surfaces.grid import grid
from landscape._surfaces.smoothness import smoothness
from resonance_toolkit import (
    AtMost,
    WeightCount,
    branch_weights,
    count_branch_weights,
    provenance,
)

_STATISTICS = ("std", "range", "mean_grad", "mean_grad_per_step")


def dilution(
    model: nn.Module,
    data: Any,
    extra: Extra,
    *,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    directions: Directions = "random",
    normalisation: Normalisation | None = None,
    normalization: Normalisation | None = None,
    over: str | Sequence[str] = "**",
    samples: int | None = AtMost(500),
    size: int | tuple[int, int] = 51,
    span: float | tuple[float, float] = 1.0,
    seed: int = 0,
    bn: BatchNormStatistics = "frozen",
    method: Method = "exact",
    tolerance: float = 1e-2,
    batch_size: int | None = None,
    executor: Executor | None = None,
) -> xr.Dataset:
    """Measure how much smoother a surface looks only because its directions cover more weights.

    Branches do not change a model's output, so they cannot change its loss surface. But a random
    direction over backbone and branches has only a part of its norm on the backbone. The plane
    looks smoother because the backbone moves less. If the direction is normalised as one vector,
    that part is about `sqrt(P_backbone / P_total)`, where P is the number of parameters. If every
    tensor is given the same norm, it is `sqrt(T_backbone / T_total)`, where T is the number of
    tensors. This verb measures both surfaces, and reports both factors next to the difference.

    T counts every weight and every bias of the backbone. N bias-free branches at each of M layers
    count as M N tensors, even if a probe stacks those of a layer in one tensor. The factor by
    tensors is then `sqrt(T / (T + M N))`.

    Args:
        model: The backbone; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        extra: The branches: a module (its parameters, and buffers called `static...`) or a mapping
            of tensors. If a module stacks several branches in one tensor, as a probe does, an
            attribute `stacked_tensors`, a tuple, names these tensors; see `grid`.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default the loss that the targets ask for, such as cross-entropy.
        metrics: Further callables that `grid` evaluates; the result does not contain them.
        directions: `"random"`, `"gradient"` (then random), `"hessian"`, or one or two mappings of
            tensors; see `grid`.
        normalisation: How directions are scaled. By default `"unit"`, as one vector, which dilutes
            them by parameters; `"tensor"` dilutes them by tensors; `"filter"`, `"layer"` and
            `"none"` do not dilute them.
        normalization: Another spelling of `normalisation`.
        over: Which parameters of the backbone the directions cover; all by default.
        samples: How many samples to draw, at most; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`, in lengths of the whole direction.
        seed: Determines samples and directions.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        method: `"exact"` evaluates every point; `"adaptive"` evaluates few and interpolates.
        tolerance: Largest error of an interpolated loss, relative to the range of the surface.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.
        executor: A `concurrent.futures.Executor` that evaluates pieces of the planes; by default
            this process does.

    Returns:
        Dataset over `covers` ("backbone + extra", "backbone"): `std`, `range`, `mean_grad` and
        `mean_grad_per_step` as in `smoothness`; `n_covered` and `n_tensors`, the numbers of
        parameters and tensors covered; `backbone_length`, the norm of the directions on the
        backbone (mean of both axes). Scalars: `factor = sqrt(P_backbone / P_total)` and
        `factor_by_tensor = sqrt(T_backbone / T_total)`, the factors by which dilution alone
        shortens directions with `"unit"` and with `"tensor"`. Over `statistic`: `change`, each
        statistic of the first surface relative to the second, minus 1.

    Raises:
        ValueError: If an argument does not fit, or `extra` does not store all its weights (such as
            a probe with `method="compressed"`), so that directions cannot cover them.

    Examples:
        >>> import torch
        >>> model, branches = nn.Linear(4, 2, bias=False), nn.Linear(4, 6, bias=False)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])
        >>> diluted = dilution(model, (x, y), branches, samples=5, size=5)
        >>> diluted["n_covered"].values, diluted["factor"].item()  # sqrt(8 / 32)
        (array([32.,  8.]), 0.5)
        >>> diluted["n_tensors"].values, diluted["factor_by_tensor"].round(3).item()  # sqrt(1 / 2)
        (array([2., 1.]), 0.707)
    """
    _check_is_stored(extra)

    # One plane over the model and `extra`, one over the model alone, alike in all else.
    measure_surface = partial(
        grid,
        model,
        data,
        loss=loss,
        metrics=metrics,
        directions=directions,
        normalisation=either_spelling(normalisation, normalization) or "unit",
        over=over,
        samples=samples,
        size=size,
        span=span,
        seed=seed,
        bn=bn,
        method=method,
        tolerance=tolerance,
        batch_size=batch_size,
        executor=executor,
    )
    surfaces = [measure_surface(extra=covered) for covered in (extra, None)]
    roughness = [smoothness(surface) for surface in surfaces]

    counts = [_count(model, over, covered) for covered in (extra, None)]
    joint_count, backbone_count = counts
    factor = math.sqrt(backbone_count.n_parameters / joint_count.n_parameters)
    factor_by_tensor = math.sqrt(backbone_count.n_tensors / joint_count.n_tensors)
    n_parameters = np.array([count.n_parameters for count in counts], float)
    n_tensors = np.array([count.n_tensors for count in counts], float)

    lengths = [surface.attrs["length_on_model"] for surface in surfaces]
    rows = {name: np.array([rough[name].item() for rough in roughness]) for name in _STATISTICS}
    change = np.array([joint / alone - 1 if alone else math.nan for joint, alone in rows.values()])

    variables: dict[str, Any] = {
        name: ("covers", row, {"long_name": roughness[0][name].attrs["long_name"]})
        for name, row in rows.items()
    }
    variables |= {
        "n_covered": ("covers", n_parameters, {"long_name": "parameters covered"}),
        "n_tensors": ("covers", n_tensors, {"long_name": "tensors covered"}),
        "backbone_length": ("covers", np.array(lengths), {"long_name": "length on the backbone"}),
        "factor": ((), factor, {"long_name": "expected dilution"}),
        "factor_by_tensor": (
            (),
            factor_by_tensor,
            {"long_name": "expected dilution, by tensors"},
        ),
        "change": ("statistic", change, {"long_name": "relative change by covering more"}),
    }
    return xr.Dataset(
        variables,
        coords={
            "covers": (
                "covers",
                ["backbone + extra", "backbone"],
                {"long_name": "tensors that directions cover"},
            ),
            "statistic": (
                "statistic",
                list(_STATISTICS),
                {"long_name": "statistic of the surface"},
            ),
        },
        attrs=surfaces[1].attrs | provenance("landscape.dilution"),
    )


def _count(
    model: nn.Module, over: str | Sequence[str] | None, covered: Extra | None
) -> WeightCount:
    tensors = tensors_to_move(model, over, covered)
    modules = module_by_tensor_name(model, covered)
    n_parameters = sum(tensor.numel() for tensor in tensors.values())
    return WeightCount(n_parameters, count_tensors(tensors, modules))


def _check_is_stored(extra: Extra) -> None:
    if not isinstance(extra, nn.Module):
        return

    n_stored = sum(weight.numel() for weight in branch_weights(extra).values())
    n_weights = count_branch_weights(extra).n_parameters
    if n_stored < n_weights:
        raise ValueError(
            f"`extra`: expected branches that store their weights, got {n_stored} of {n_weights} "
            'in tensors; attach the probe with method="exact"'
        )
