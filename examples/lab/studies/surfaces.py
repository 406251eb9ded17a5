"""Loss surfaces of the backbones around their initialisation, plain and with branches.

`measure_planes` measures one backbone over seeds, normalisations and numbers of branches; planes
that are finished stay in the cache, where figure 5 and table 4 share them. `statistics_of` makes
the numbers of tables 7 and 8 of them.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr

import landscape
from lab.data.images import Images
from lab.data.samples import relabel
from lab.results.files import dataset_writer, read_dataset, write_atomically
from lab.training.recipe import Recipe
from resonance_toolkit import WeightCount, count_branch_weights

Scaling = Literal["tensor", "unit"]

# Two readings of the paper's "normalized to unit variance": every tensor equally long, or all
# numbers as one vector. Only the first gives the published numbers.
SCALINGS: tuple[Scaling, ...] = ("tensor", "unit")
BRANCHES = (1, 20, 300)
CLASSES = {"mlp": 10, "cnn": 100, "vit6": 100}  # CIFAR-10 in table 7, CIFAR-100 in table 8
PAPER_IMAGE = 32  # pixels each way
PAPER_SIZE, PAPER_SAMPLES, SPAN = 51, 500, 1.0  # the span is ours: the paper gives none

STATISTICS = {"std": "Std(Loss)", "range": "Range(Loss)", "mean_grad": "Mean(Grad)"}

CACHE_VERSION = 1  # raise it when the same plane comes to mean something else


@dataclass(frozen=True)
class PlaneBudget:
    """What is spent on one plane.

    Attributes:
        size: Points along each axis.
        samples: Training images.
        tolerance: Interpolate to this share of the range; None evaluates every point.
        span: How far the axes reach, in lengths of the direction.
    """

    size: int
    samples: int
    tolerance: float | None = None
    span: float = SPAN

    def __str__(self) -> str:
        words = f"{self.samples} images, {self.size} x {self.size} points"
        if self.span != SPAN:
            words += f" from {-self.span:g} to {self.span:g}"
        if self.tolerance is not None:
            words += f" interpolated to {100 * self.tolerance:g} % of their range"
        return words


def measure_planes(
    recipe: Recipe,
    seeds: Sequence[int],
    budget: PlaneBudget,
    *,
    cache: Path,
    scalings: Sequence[Scaling] = SCALINGS,
) -> xr.Dataset:
    """Measure the loss of one backbone on planes of random directions over it and its branches.

    Images of the paper's size get labels of as many classes as its data have, see
    `lab.data.samples.relabel`; of smaller ones the networks are others anyway.

    Args:
        recipe: Which backbone on what.
        seeds: Each decides weights, branches, images and directions.
        budget: Of each plane.
        cache: A folder for finished planes.
        scalings: How directions are normalised.

    Returns:
        Dataset with `loss (scaling, seed, n, alpha, beta)`, n = 0 without branches;
        `n_parameters (n)` and `n_tensors (n)` of backbone and branches.
    """
    planes = []
    for scaling in scalings:
        by_seed = [
            _cached_planes(replace(recipe, seed=seed), budget, scaling, cache) for seed in seeds
        ]
        seed_label = xr.Variable("seed", list(seeds), {"long_name": "seed"})
        planes.append(xr.concat(by_seed, seed_label, data_vars=["loss"]))

    scaling_label = xr.Variable("scaling", list(scalings), {"long_name": "normalisation"})
    return xr.concat(planes, scaling_label, data_vars=["loss"])


def statistics_of(planes: xr.Dataset) -> xr.Dataset:
    """Compute the statistics of tables 7 and 8, their changes, and what dilution alone predicts.

    Args:
        planes: From `measure_planes`.

    Returns:
        Dataset with `value (scaling, statistic, seed, n)`, where Mean(Grad) is per step of the
        paper's 51 x 51 points whatever the size here; `change`, the same relative to n = 0, in
        percent; `reduction (scaling, n)`, the change by dilution; `n_parameters`, `n_tensors (n)`.
    """
    rough = landscape.smoothness(planes)
    step = 2 * float(planes["alpha"].max()) / (PAPER_SIZE - 1)
    values = {"std": rough["std"], "range": rough["range"], "mean_grad": rough["mean_grad"] * step}

    label = xr.Variable("statistic", list(values), {"long_name": "statistic of the surface"})
    value = xr.concat([v.drop_attrs(deep=False) for v in values.values()], label)
    change = 100 * (value / value.sel(n=0) - 1)

    counts = {"tensor": planes["n_tensors"], "unit": planes["n_parameters"]}
    reductions = [
        100 * (np.sqrt(counts[scaling].sel(n=0) / counts[scaling]) - 1)
        for scaling in planes["scaling"].values
    ]
    return xr.Dataset(
        {
            "value": value.assign_attrs(long_name="statistic of the loss over the plane"),
            "change": change.assign_attrs(long_name="change by branches", units="%"),
            "reduction": xr.concat(reductions, planes["scaling"])
            .drop_attrs(deep=False)
            .assign_attrs(long_name="change by dilution alone", units="%"),
            "n_parameters": planes["n_parameters"],
            "n_tensors": planes["n_tensors"],
        }
    )


def _cached_planes(
    recipe: Recipe, budget: PlaneBudget, scaling: Scaling, cache: Path
) -> xr.Dataset:
    images = recipe.images()
    if images.image == PAPER_IMAGE:
        images = relabel(images, CLASSES[recipe.backbone], seed=recipe.seed)
    settings = asdict(budget) | {"scaling": scaling, "branches": BRANCHES, "version": CACHE_VERSION}
    network = {"backbone": recipe.backbone, "seed": recipe.seed, "data": images.fingerprint}

    key = json.dumps(settings | network, sort_keys=True)
    path = cache / f"planes-{hashlib.blake2b(key.encode(), digest_size=10).hexdigest()}.nc"
    planes = read_dataset(path, required="loss")
    if planes is None:
        planes = _measure(recipe, images, budget, scaling)
        write_atomically({path: dataset_writer(planes)})
    return planes


def _measure(recipe: Recipe, images: Images, budget: PlaneBudget, scaling: Scaling) -> xr.Dataset:
    data = images.x_train, images.y_train
    torch.manual_seed(recipe.seed)
    model = recipe.model(images)

    settings: dict[str, Any] = {
        "normalisation": scaling,
        "over": "**",
        "samples": budget.samples,
        "size": budget.size,
        "span": budget.span,
        "seed": recipe.seed,
    }
    if budget.tolerance is not None:
        settings |= {"method": "adaptive", "tolerance": budget.tolerance}

    # One model for all: branches come and go beside it.
    surfaces = [landscape.grid(model, data, **settings)]
    counts = [count_branch_weights(model)]
    for n in BRANCHES:
        probe = replace(recipe, n=n).probe(model, images.x_train[:2], 1)
        assert probe is not None
        with probe:
            surfaces.append(landscape.grid(model, data, extra=probe, **settings))
            counts.append(_sum_of(counts[0], count_branch_weights(probe)))

    number = xr.Variable("n", [0, *BRANCHES], {"long_name": "branches at each layer"})
    losses = [surface[["loss"]] for surface in surfaces]
    planes = xr.concat(losses, number, combine_attrs="drop_conflicts")
    n_parameters = [count.n_parameters for count in counts]
    n_tensors = [count.n_tensors for count in counts]
    return planes.assign(
        n_parameters=("n", n_parameters, {"long_name": "parameters"}),
        n_tensors=("n", n_tensors, {"long_name": "parameter tensors"}),
    )


def _sum_of(first: WeightCount, second: WeightCount) -> WeightCount:
    return WeightCount(first.n_parameters + second.n_parameters, first.n_tensors + second.n_tensors)
