"""Table 4: the initial gradient with branches attached, dilution, and planes measured."""

import math
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gradients
from lab.data.samples import relabel, resize
from lab.studies.surface_rows import CHANGES, REDUCTIONS
from lab.studies.surfaces import CLASSES
from lab.training.recipe import Recipe
from lab.training.scales import LABELS


def measure_gradient(recipe: Recipe, n: int, seed: int, samples: int) -> xr.Dataset:
    """Measure the gradient of the main loss at initialisation, with n branches attached.

    On 32 x 32 images in three channels and with the paper's number of classes, whatever the data:
    the counts of parameters and tensors are then the paper's.

    Returns:
        Dataset of `gradients.initial_norm`, and in percent: `change_backbone` of the norm over the
        backbone, `dilution_by_parameter` and `dilution_by_tensor`.
    """
    recipe = replace(recipe, n=n, seed=seed)
    classes = CLASSES[recipe.backbone]
    images = resize(relabel(recipe.images(), classes, seed=seed), 32, 3)
    torch.manual_seed(seed)
    model = recipe.model(images, classes)

    data = images.x_train, images.y_train
    plain = gradients.initial_norm(model, data, samples=samples)
    with recipe.probe(model, images.x_train[:2], 1) as probe:
        result = gradients.initial_norm(model, data, probe, samples=samples)

    change = 100 * (result["norm_backbone"] / plain["norm_backbone"] - 1)
    percent = {
        "change_backbone": (change, "change of the norm over the backbone"),
        "dilution_by_parameter": (result["reduction"], "change by dilution, by parameters"),
        "dilution_by_tensor": (result["reduction_by_tensor"], "change by dilution, by tensors"),
    }
    for name, (value, long_name) in percent.items():
        result[name] = value.drop_attrs().assign_attrs(long_name=long_name, units="%")
    return result.drop_dims("layer")


def draw_reductions(result: xr.Dataset) -> Figure:
    """Draw what is published, dilution by parameters and by tensors, and what planes measured.

    Args:
        result: Over `architecture` and `n`: `change (statistic, seed)` of planes,
            `dilution_by_parameter`, `dilution_by_tensor`.
    """
    names = result["architecture"].values.tolist()
    figure, axes = plt.subplots(1, len(names), figsize=(11, 4), layout="constrained", sharey=True)

    for ax, name in zip(np.atleast_1d(axes), names, strict=True):
        part = result.sel(architecture=name)
        _draw_dilution(ax, part)
        _draw_points(ax, name, part)
        ax.set(title=LABELS[name], xscale="log", xlabel="branches at each layer")
        ax.set_xticks([1, 20, 300], ["1", "20", "300"])
        ax.minorticks_off()

    first = np.atleast_1d(axes)[0]
    first.set_ylabel("change / %")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def _draw_points(ax: Axes, name: str, part: xr.Dataset) -> None:
    # Side by side: they would lie on one another.
    reductions = REDUCTIONS[name]
    numbers = np.array(list(reductions))
    values = [published.mean for published in reductions.values()]
    deviations = [published.deviation for published in reductions.values()]
    ax.errorbar(
        numbers / 1.2,
        values,
        deviations,
        fmt="s",
        color="C1",
        capsize=4,
        label="published, table 4",
    )

    table = 7 if name == "mlp" else 8
    changes = [CHANGES[name][n][0] for n in reductions]
    label = "published, tables 7 and 8, Std(Loss)"
    ax.plot(numbers / 1.2, changes, "D", mfc="none", color="C3", label=label, gid=f"table {table}")

    changes_here = part["change"].sel(statistic="mean_grad", n=numbers)
    ax.errorbar(
        numbers * 1.2,
        changes_here.mean("seed").values,
        changes_here.std("seed", ddof=1).values if changes_here.sizes["seed"] > 1 else None,
        fmt="o",
        color="C0",
        capsize=4,
        label="here: planes, tensors equally long",
    )


def _draw_dilution(ax: Axes, part: xr.Dataset) -> None:
    numbers = np.geomspace(1, 400, 100)
    styles = {
        "tensor": ("-", "C0", "dilution by tensors"),
        "parameter": ("--", "0.5", "dilution by parameters"),
    }
    for kind, (style, colour, label) in styles.items():
        # From the factor at one branch to the count of any: 1 / factor^2 = 1 + N * share.
        factor = 1 + float(part[f"dilution_by_{kind}"].sel(n=1)) / 100
        share = 1 / factor**2 - 1
        percent = [100 * (1 / math.sqrt(1 + number * share) - 1) for number in numbers]
        ax.plot(numbers, percent, style, color=colour, label=label)
