import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from landscape._directions.parameters import Extra, moving_tensors
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
    over: str | Sequence[str] = "**",
    samples: int | None = AtMost(500),
    size: int = 51,
    span: float = 1.0,
    seed: int = 0,
    **settings: Any,
) -> xr.Dataset:
    """Tell smoothing from mere parameter count.

    Branches beside a model do not change its output, so they cannot change its loss surface. But a
    random direction over backbone and branches, normalised as one vector, puts only about
    `sqrt(P_backbone / P_total)` of its length on the backbone: the plane looks smoother because
    the backbone moves less. Both surfaces are measured here, side by side with that factor.

    Args:
        model: The backbone; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        extra: The branches: a module (its parameters, and buffers called `static...`) or a mapping
            of tensors.
        loss: As in `grid`; the main loss by default.
        over: Which parameters of the backbone the directions cover; all by default.
        samples: How many samples to draw, if there are so many; None takes all.
        size: Points along alpha and beta.
        span: The axes run from `-span` to `span`, in lengths of the whole direction.
        seed: Decides samples and directions.
        settings: Passed on to `grid`.

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
        >>> found = dilution(model, (x, y), branches, samples=5, size=5)
        >>> found["n_covered"].values, found["factor"].item()  # sqrt(8 / 32)
        (array([32.,  8.]), 0.5)
    """
    common: dict[str, Any] = {"loss": loss, "over": over, "samples": samples, "size": size}
    common |= {"span": span, "seed": seed, "normalisation": "unit"} | settings
    surfaces = [grid(model, data, extra=covered, **common) for covered in (extra, None)]
    roughness = [smoothness(surface) for surface in surfaces]
    counts = [_count(moving_tensors(model, over, covered)) for covered in (extra, None)]
    lengths = [surface.attrs["length_on_model"] for surface in surfaces]
    rows = {name: np.array([found[name].item() for found in roughness]) for name in _STATISTICS}
    described = {name: roughness[0][name].attrs["long_name"] for name in _STATISTICS}
    change = np.array([joint / alone - 1 if alone else math.nan for joint, alone in rows.values()])
    variables: dict[str, Any] = {
        name: ("covers", row, {"long_name": described[name]}) for name, row in rows.items()
    }
    variables |= {
        "n_covered": ("covers", np.array(counts, float), {"long_name": "parameters covered"}),
        "backbone_length": ("covers", np.array(lengths), {"long_name": "length on the backbone"}),
        "factor": ((), math.sqrt(counts[1] / counts[0]), {"long_name": "expected dilution"}),
        "change": ("statistic", change, {"long_name": "relative change by covering more"}),
    }
    labels = {"covers": ["backbone + extra", "backbone"], "statistic": list(_STATISTICS)}
    notes = {"covers": "tensors that directions cover", "statistic": "statistic of the surface"}
    return xr.Dataset(
        variables,
        coords={n: (n, values, {"long_name": notes[n]}) for n, values in labels.items()},
        attrs=surfaces[1].attrs | provenance("landscape.dilution"),
    )


def _count(tensors: dict[str, Any]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())
