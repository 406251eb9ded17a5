"""The asymmetric-exit study: what it published, the runs, and the rows that compare the two."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats
import torch
import torch.nn.functional as F
import xarray as xr

import probes
from lab.data.text import Corpus, windows
from lab.results.verdicts import Row
from lab.training.train_text import TextRecipe, Variant, train_text_model

TAU = 0.95
THRESHOLDS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, TAU, 0.99, 1.01)
ONE_LAYER = Variant("standard", depth=1)

# Perplexity, percent of tokens that leave early, percent of the layers run.
QUANTITIES = ("PPL", "shallow %", "compute %")
Published = tuple[float, float, float]

# Experiments 5 and 6.
PUBLISHED: dict[str, Published] = {
    "asymmetric 0.3": (24.88, 72.0, 52.0),
    "asymmetric 0.5": (23.98, 52.3, 65.2),
    "asymmetric 0.7": (22.95, 52.4, 65.0),
    "asymmetric l2 0.7": (32.07, 86.3, 42.5),
}
BY_THRESHOLD: dict[str, dict[float, Published]] = {
    "asymmetric 0.7": {
        0.5: (41.62, 94.4, 37.0),
        0.7: (40.48, 87.8, 41.4),
        0.8: (40.57, 84.5, 43.6),
        0.9: (36.94, 73.4, 51.1),
        0.95: (31.46, 59.7, 60.2),
    },
    "asymmetric l2 0.7": {
        0.7: (50.24, 91.0, 39.4),
        0.8: (51.46, 87.5, 41.7),
        0.9: (53.10, 79.0, 47.4),
        0.95: (54.90, 68.9, 54.0),
    },
}

# Perplexity without exits.
WHOLE = {"standard": 34.86, "deep supervision": 30.54}
WHOLE_ONE_LAYER = 35.29


def measure_variants(
    corpus: Corpus, variants: Sequence[Variant], seeds: Sequence[int], *, epochs: int, cache: Path
) -> xr.Dataset:
    """Train every variant from every seed, and analyse its exits on the validation part.

    Returns:
        The variables of `probes.exits` over `variant` and `seed`, and `one_layer_perplexity (seed)`
        of a model with a single layer.
    """
    x, y = windows(corpus.validation)
    recipes = [TextRecipe(seed=seed, epochs=epochs) for seed in seeds]

    by_variant = []
    for variant in variants:
        models = [train_text_model(corpus, variant, recipe, cache=cache) for recipe in recipes]
        analyses = [
            probes.exits(model, (x, y), "layers.*", thresholds=THRESHOLDS) for model in models
        ]
        seed_label = xr.Variable("seed", list(seeds), {"long_name": "seed of weights and order"})
        by_variant.append(xr.concat(analyses, seed_label, combine_attrs="drop_conflicts"))

    names = [str(variant) for variant in variants]
    variant_label = xr.Variable("variant", names, {"long_name": "loss weights"})
    result = xr.concat(by_variant, variant_label, combine_attrs="drop_conflicts")

    shallow_models = [
        train_text_model(corpus, ONE_LAYER, recipe, cache=cache) for recipe in recipes
    ]

    # Cross-entropy wants the classes before the positions.
    with torch.no_grad():
        entropies = [float(F.cross_entropy(model(x).mT, y)) for model in shallow_models]
    attributes = {"long_name": "perplexity of a model of one layer"}
    return result.assign(one_layer_perplexity=("seed", np.exp(np.array(entropies)), attributes))


def interval(values: xr.DataArray, level: float = 0.95) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its t interval, NaN for a single seed."""
    n = values.sizes["seed"]
    mean = float(values.mean())
    if n < 2:
        return mean, float("nan")

    # Student's quantile: the deviation comes from the same few seeds.
    quantile = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    return mean, float(quantile * values.std("seed", ddof=1) / np.sqrt(n))


def compare_variants(result: xr.Dataset) -> list[Row]:
    """Put published numbers beside ours; no verdict on another text, but intervals."""
    table = result.sel(measure="max softmax", exit="layers.0")
    variants = table["variant"].values.tolist()

    rows = [_row("standard, 1 layer: PPL", WHOLE_ONE_LAYER, table["one_layer_perplexity"])]
    for name, perplexity in WHOLE.items():
        if name in variants:
            last_layer = table["fixed_perplexity"].sel(variant=name).isel(layer=-1)
            rows.append(_row(f"{name}: PPL", perplexity, last_layer))

    for name, published in PUBLISHED.items():
        if name in variants:
            cell = table.sel(variant=name, threshold=TAU)
            rows += _compare_cell(name, published, cell)

    for name, by_threshold in BY_THRESHOLD.items():
        if name in variants:
            for tau, published in by_threshold.items():
                cell = table.sel(variant=name, threshold=tau)
                rows += _compare_cell(f"{name} at {tau}", published, cell)
    return rows


def _compare_cell(title: str, published: Published, cell: xr.Dataset) -> list[Row]:
    columns = (cell["perplexity"], 100 * cell["shallow"], 100 * cell["compute"])
    return [
        _row(f"{title}: {quantity}", number, values)
        for quantity, number, values in zip(QUANTITIES, published, columns, strict=True)
    ]


def _row(quantity: str, published: float, values: xr.DataArray) -> Row:
    mean, half_width = interval(values)
    spread = "one seed" if np.isnan(half_width) else f"+- {half_width:.2g} over seeds"
    return Row(quantity, published, mean, note=f"{spread}, other text")
