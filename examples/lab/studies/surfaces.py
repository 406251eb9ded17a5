"""A backbone's loss surface around its initialisation, plain and with branches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import xarray as xr

import landscape
from lab.data.images import Images
from lab.training.recipe import Recipe


def measure_surfaces(
    recipe: Recipe,
    images: Images,
    branches: Sequence[int],
    *,
    size: int,
    samples: int,
    tolerance: float | None = None,
) -> tuple[xr.Dataset, dict[str, xr.Dataset]]:
    """Measure what branches change on a plane of random directions, and the planes to draw.

    Args:
        recipe: Which backbone; its seed decides weights, images and directions.
        images: Of this recipe.
        branches: How many at each layer, one after another.
        size: Points along each axis; drawn with at most 25.
        samples: Training images.
        tolerance: Interpolate to this share of the range; None evaluates every point.

    Returns:
        What `landscape.dilution` gives, over `n`; results of `landscape.grid` by title.
    """
    data = images.x_train, images.y_train
    torch.manual_seed(recipe.seed)
    model = recipe.model(images)

    settings: dict[str, Any] = {"over": "**", "samples": samples, "seed": recipe.seed}
    if tolerance is not None:
        settings |= {"method": "adaptive", "tolerance": tolerance}
    drawing = settings | {"normalisation": "unit", "size": min(size, 25)}

    # One model for all: branches come and go beside it.
    surfaces = {"plain": landscape.grid(model, data, **drawing)}
    dilutions = []
    for n in branches:
        probe = replace(recipe, n=n).probe(model, images.x_train[:2], 1)
        assert probe is not None
        with probe:
            dilutions.append(landscape.dilution(model, data, probe, size=size, **settings))
            surfaces[f"{n} x"] = landscape.grid(model, data, extra=probe, **drawing)

    number = xr.Variable("n", list(branches), {"long_name": "branches at each layer"})
    return xr.concat(dilutions, dim=number, combine_attrs="drop_conflicts"), surfaces
