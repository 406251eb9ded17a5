"""The asymmetric-exit study: what it published, the runs, and the rows that compare the two."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.stats
import torch
import torch.nn.functional as F
import xarray as xr

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows
from lab.results.publish import Row
from lab.training.train_text import Variant, train

TAU = 0.95
THRESHOLDS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, TAU, 0.99, 1.01)
ONE_LAYER = Variant("standard", depth=1)
# Experiments 5 and 6: perplexity, percent of tokens that leave early, percent of the layers run.
PUBLISHED = {
    "asymmetric 0.3": (24.88, 72.0, 52.0),
    "asymmetric 0.5": (23.98, 52.3, 65.2),
    "asymmetric 0.7": (22.95, 52.4, 65.0),
    "asymmetric l2 0.7": (32.07, 86.3, 42.5),
}
WHOLE = {"standard": 34.86, "deep supervision": 30.54}  # perplexity without exits
WHOLE_ONE_LAYER = 35.29
BY_THRESHOLD = {
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


def measure(
    corpus: Corpus, variants: Sequence[Variant], seeds: Sequence[int], *, epochs: int, cache: Path
) -> xr.Dataset:
    """Train every variant from every seed, and analyse its exits on the validation part.

    Returns:
        The variables of `probes.exits` over `variant` and `seed`, and `one_layer_perplexity (seed)`
        of a model with a single layer.
    """
    x, y = windows(corpus.validation)
    rows = []
    for variant in variants:
        models = [train(corpus, variant, seed=s, epochs=epochs, cache=cache) for s in seeds]
        found = [probes.exits(m, (x, y), "layers.*", thresholds=THRESHOLDS) for m in models]
        label = xr.Variable("seed", list(seeds), {"long_name": "seed of weights and order"})
        rows.append(xr.concat(found, label, combine_attrs="drop_conflicts"))
    label = xr.Variable("variant", [str(v) for v in variants], {"long_name": "loss weights"})
    result = xr.concat(rows, label, combine_attrs="drop_conflicts")
    alone = [train(corpus, ONE_LAYER, seed=s, epochs=epochs, cache=cache) for s in seeds]
    with torch.no_grad():
        entropy = np.array([float(F.cross_entropy(m(x).mT, y)) for m in alone])
    words = {"long_name": "perplexity of a model of one layer"}
    return result.assign(one_layer_perplexity=("seed", np.exp(entropy), words))


def interval(values: xr.DataArray, level: float = 0.95) -> tuple[float, float]:
    """The mean over seeds and half the width of its t interval, NaN for a single seed."""
    n = values.sizes["seed"]
    if n < 2:
        return float(values.mean()), float("nan")
    wide = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    return float(values.mean()), float(wide * values.std("seed", ddof=1) / np.sqrt(n))


def compare(result: xr.Dataset) -> list[Row]:
    """Published numbers beside ours; no verdict on another text, but intervals."""
    table = result.sel(measure="max softmax", exit="layers.0")
    rows = [_row("standard, 1 layer: PPL", WHOLE_ONE_LAYER, table["one_layer_perplexity"])]
    for name in (v for v in WHOLE if v in table["variant"]):
        deep = table["fixed_perplexity"].sel(variant=name).isel(layer=-1)
        rows.append(_row(f"{name}: PPL", WHOLE[name], deep))
    known = {k: {"": v} for k, v in PUBLISHED.items()}
    for title, published in (("", known), (" at", BY_THRESHOLD)):
        for name in (v for v in published if v in table["variant"]):
            for tau, numbers in published[name].items():
                cell = table.sel(variant=name, threshold=tau or TAU)
                ours = (cell["perplexity"], 100 * cell["shallow"], 100 * cell["compute"])
                for what, p, v in zip(
                    ("PPL", "shallow %", "compute %"), numbers, ours, strict=True
                ):
                    rows.append(_row(f"{name}{title}{tau and f' {tau}'}: {what}", p, v))
    return rows


def _row(quantity: str, published: float, values: xr.DataArray) -> Row:
    mean, half = interval(values)
    spread = f"+- {half:.2g} over seeds" if half == half else "one seed"
    return Row(quantity, published, mean, note=f"{spread}, other text")


def show(result: xr.Dataset) -> str:
    """What the published tables lack: the baselines beside every routed row, with intervals."""
    table = result.sel(measure="max softmax", exit="layers.0")
    standard = table["fixed_perplexity"].sel(variant="standard").isel(layer=-1)
    heads = ("all deep", "- standard", "all shallow", "routed", "random", "oracle", "shallow %")
    heads += ("compute %", "with head %", "gain/nat")
    lines = [f"at threshold {TAU}; mean +- half a 95 % interval over seeds"]
    lines.append(f"{'':22}" + "".join(f"{head:>15}" for head in heads))
    for name in table["variant"].values:
        row = table.sel(variant=name)
        cell = row.sel(threshold=TAU)
        deep, early = (row["fixed_perplexity"].isel(layer=i) for i in (-1, 0))
        values = [deep, deep - standard, early, cell["perplexity"], cell["random_perplexity"]]
        values += [row["oracle_perplexity"], 100 * cell["shallow"], 100 * cell["compute"]]
        values += [100 * cell["compute_with_head"], cell["gain"]]
        cells = (f"{mean:.3f}+-{half:.3f}" for mean, half in map(interval, values))
        lines.append(f"{name:22}" + "".join(f"{text:>15}" for text in cells))
    return "\n".join(lines)


def calibrated(model: CharacterModel, corpus: Corpus, *, exit_rate: float = 0.5) -> float:
    """The threshold at which such a share of the calibration part leaves after the first layer."""
    record = probes.record_exits(model, windows(corpus.calibration), "layers.*")
    found = probes.calibrate_exits(record, exit_rate=exit_rate)
    return float(found["tau"].sel(measure="max softmax", exit="layers.0"))


def skip(
    model: CharacterModel, corpus: Corpus, *, samples: int, thresholds: Sequence[float]
) -> str:
    """Read validation text with layers really skipped: perplexity, and time beside the formula."""
    ids = windows(corpus.validation)[0][:samples]
    prompt, follow = ids[:, :8], ids[:, 8:]
    probes.generate(model, prompt[:1], 8)  # first calls are slower
    lines, full = [f"{'decoding':34}     PPL  formula  counted  measured"], None
    ways = [(tau, skipped) for tau in thresholds for skipped in ("recompute", "propagate")]
    for tau, skipped in [(1.01, "recompute"), *ways]:
        start = time.process_time()
        made = probes.generate(
            model,
            prompt,
            follow.shape[1],
            layers="layers.0",
            threshold=tau,
            skipped=skipped,
            follow=follow,
        )
        seconds = time.process_time() - start
        full = full or seconds
        numbers = (np.exp(made["cross_entropy"].mean()), made["compute"], made["compute_with_head"])
        cells = " ".join(f"{float(n):8.3f}" for n in (*numbers, seconds / full))
        lines.append(f"threshold {tau:4.2f}, {skipped:18}" + cells)
    return "\n".join(lines)
