"""Table 4: the initial gradient with branches attached, over the backbone and with them counted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import xarray as xr
from matplotlib.figure import Figure

import gradients
from lab.data.samples import resize
from lab.training.recipe import Recipe
from lab.training.scales import LABELS


def measure_gradient(recipe: Recipe, n: int, seed: int, samples: int) -> xr.Dataset:
    """Measure the gradient of the main loss at initialisation, with n branches attached.

    On 32 x 32 images in three channels and with 100 outputs, whatever the data.
    """
    # Samples are drawn from all images, not from those that a scale would train on.
    recipe = replace(recipe, n=n, seed=seed, per_class=None)
    images = resize(recipe.images(), 32, 3)
    torch.manual_seed(seed)
    model = recipe.model(images, classes=100)

    data = images.x_train, images.y_train
    plain = gradients.initial_norm(model, data, samples=samples)
    with recipe.probe(model, images.x_train[:2], 1) as probe:
        result = gradients.initial_norm(model, data, probe.n_parameters, samples=samples)

    change = 100 * (result["norm_backbone"] / plain["norm_backbone"] - 1)
    result["change_backbone"] = change.assign_attrs(
        long_name="change of the norm over the backbone", units="%"
    )
    return result.drop_dims("layer")


def draw_reductions(
    result: xr.Dataset, published: Mapping[str, Sequence[tuple[float, float]]]
) -> Figure:
    """Draw published reductions with their deviation, dilution, and the backbone's own norm.

    Args:
        result: From `measure_gradient`, over `architecture`, `seed` and `n`.
        published: By architecture, reduction and deviation in percent for each `n`.
    """
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)

    for ax, (name, reductions) in zip(axes, published.items(), strict=True):
        part = result.sel(architecture=name)
        numbers = result["n"].values

        values, deviations = zip(*reductions, strict=True)
        ax.errorbar(numbers, values, deviations, fmt="s", color="C1", capsize=4, label="published")

        dense_numbers, dilution = _dilution_curve(part.isel(seed=0))
        ax.plot(dense_numbers, dilution, color="C0", label="here: dilution, branches counted")

        backbone_change = part["change_backbone"].mean("seed")
        ax.plot(numbers, backbone_change, "o", color="C2", label="here: norm over the backbone")
        ax.set(title=LABELS[name], xscale="log", xlabel="branches at each layer")

    axes[0].set_ylabel("change of the initial gradient / %")
    axes[0].legend(fontsize=8)
    return figure


def _dilution_curve(part: xr.Dataset) -> tuple[list[float], list[float]]:
    """Return numbers of branches up to 400, and `sqrt(backbone / (backbone + branches)) - 1`."""
    branch_parameters = part["n_everything"] - part["n_backbone"]
    per_branch = float(branch_parameters[0]) / part["n"].values[0]
    backbone = float(part["n_backbone"].isel(n=0))

    numbers = [math.exp(math.log(400) * index / 99) for index in range(100)]
    percent = [
        100 * (math.sqrt(backbone / (backbone + number * per_branch)) - 1) for number in numbers
    ]
    return numbers, percent
