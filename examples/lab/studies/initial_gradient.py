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


def measure(recipe: Recipe, n: int, seed: int, samples: int) -> xr.Dataset:
    """The gradient of the main loss at initialisation, with n branches attached.

    On 32 x 32 images in three channels and with 100 outputs, whatever the data.
    """
    recipe = replace(recipe, n=n, seed=seed, per_class=None)
    images = resize(recipe.images(), 32, 3)
    torch.manual_seed(seed)
    model = recipe.model(images, classes=100)
    data = images.x_train, images.y_train
    plain = gradients.initial_norm(model, data, samples=samples)
    with recipe.probe(model, images.x_train[:2], 1) as probe:
        found = gradients.initial_norm(model, data, probe.n_parameters, samples=samples)
    change = 100 * (found["norm_backbone"] / plain["norm_backbone"] - 1)
    found["change_backbone"] = change.assign_attrs(
        long_name="change of the norm over the backbone", units="%"
    )
    return found.drop_dims("layer")


def draw_reductions(
    result: xr.Dataset, published: Mapping[str, Sequence[tuple[float, float]]]
) -> Figure:
    """Published reductions with their deviation, dilution, and the backbone's own norm."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
    for ax, (name, reductions) in zip(axes, published.items(), strict=True):
        found, numbers = result.sel(architecture=name), result["n"].values
        values, deviations = zip(*reductions, strict=True)
        ax.errorbar(numbers, values, deviations, fmt="s", color="C1", capsize=4, label="published")
        counts = found["n_everything"].isel(seed=0) - found["n_backbone"].isel(seed=0)
        per_branch = float(counts[0]) / numbers[0]
        size = float(found["n_backbone"].isel(seed=0, n=0))
        grid = [math.exp(math.log(400) * i / 99) for i in range(100)]
        curve = [100 * (math.sqrt(size / (size + k * per_branch)) - 1) for k in grid]
        ax.plot(grid, curve, color="C0", label="here: dilution, branches counted")
        own = found["change_backbone"].mean("seed")
        ax.plot(numbers, own, "o", color="C2", label="here: norm over the backbone")
        ax.set(title=LABELS[name], xscale="log", xlabel="branches at each layer")
    axes[0].set_ylabel("change of the initial gradient / %")
    axes[0].legend(fontsize=8)
    return figure
