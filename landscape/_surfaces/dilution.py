import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._directions.parameters import Extra, tensors_to_move
from landscape._directions.vectors import Normalisation
from landscape._evaluation.adaptive import Method
from landscape._evaluation.problem import BatchNormStatistics
from landscape._surfaces.axes import Directions, either_spelling
from landscape._surfaces.grid import grid
from landscape._surfaces.smoothness import smoothness
from resonance_toolkit import AtMost, provenance

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
    """Tell smoothing from mere parameter count.

    Branches beside a model do not change its output, so they cannot change its loss surface. But a
    random direction over backbone and branches, normalised as one vector, puts only about
    `sqrt(P_backbone / P_total)` of its length on the backbone: the plane looks smoother because
    the backbone moves less. Both surfaces are measured here, side by side with that factor.

    Args:
        model: The backbone; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (positional arguments of
            the model) or a mapping (its keywords); batches padded to unequal lengths stay apart.
        extra: The branches: a module (its parameters, and buffers called `static...`) or a mapping
            of tensors.
        loss: `(outputs, targets)` or `(model, x, y)`, a mean over the batch or one value per
            sample; by default what targets ask for, such as cross-entropy of classes.
        metrics: Further callables by name that `grid` evaluates; the result has none of them.
        directions: `"random"`, `"gradient"` (then random), `"hessian"`, or one or two mappings of
            tensors; see `grid`.
        normalisation: How directions are scaled: as one vector (`"unit"`) by default, which is what
            dilutes them; else `"filter"`, `"layer"` or `"none"`.
        normalization: Another spelling of `normalisation`.
        over: Which parameters of the backbone the directions cover; all by default.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`, in lengths of the whole direction.
        seed: Decides samples and directions.
        bn: `"frozen"` running statistics, or `"recompute"` them at every point.
        method: `"exact"` evaluates every point; `"adaptive"` evaluates few and interpolates.
        tolerance: Largest error of an interpolated loss, relative to the range of the surface.
        batch_size: Samples at a time; by default as many as keep activations in the cache.
        executor: Where pieces of the planes are evaluated; by default in this process.

    Returns:
        Dataset over `covers` ("backbone + extra", "backbone"): `std`, `range`, `mean_grad` and
        `mean_grad_per_step` as in `smoothness`; `n_covered` parameters; `backbone_length`, the
        length of the directions on the backbone (mean of both axes). Without dimension:
        `factor = sqrt(P_backbone / P_total)`, what dilution alone multiplies lengths by. Over
        `statistic`: `change`, each statistic of the first row relative to the second, minus 1.

    Examples:
        >>> import torch
        >>> model, branches = nn.Linear(4, 2, bias=False), nn.Linear(4, 6, bias=False)
        >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 0])
        >>> diluted = dilution(model, (x, y), branches, samples=5, size=5)
        >>> diluted["n_covered"].values, diluted["factor"].item()  # sqrt(8 / 32)
        (array([32.,  8.]), 0.5)
    """
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

    counts = [_count_numbers(tensors_to_move(model, over, covered)) for covered in (extra, None)]
    lengths = [surface.attrs["length_on_model"] for surface in surfaces]
    rows = {name: np.array([rough[name].item() for rough in roughness]) for name in _STATISTICS}
    change = np.array([joint / alone - 1 if alone else math.nan for joint, alone in rows.values()])

    variables: dict[str, Any] = {
        name: ("covers", row, {"long_name": roughness[0][name].attrs["long_name"]})
        for name, row in rows.items()
    }
    variables |= {
        "n_covered": ("covers", np.array(counts, float), {"long_name": "parameters covered"}),
        "backbone_length": ("covers", np.array(lengths), {"long_name": "length on the backbone"}),
        "factor": ((), math.sqrt(counts[1] / counts[0]), {"long_name": "expected dilution"}),
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


def _count_numbers(tensors: dict[str, Any]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())
