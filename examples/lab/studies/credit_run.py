"""One network of the credit audit: trained, then measured in every way; finished ones are kept."""

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

import nudging
from lab.backbones.resmlp import LAYERS
from lab.data.images import Images, load
from lab.data.samples import subset
from lab.results import netcdf
from lab.results.cache import read_dataset
from lab.results.report import write_atomically
from lab.training.local_training import Recipe, Trained, train

ETAS = (0.003, 0.01)


@dataclass(frozen=True)
class Case:
    """What to train.

    Attributes:
        method: One of `lab.local_training.CREDITS`.
        seed: Of everything.
        recipe: How.
        data: As for `lab.data.images.load`.
        per_class: Training images of each class; None takes all.
    """

    method: str
    seed: int
    recipe: Recipe
    data: str
    per_class: int | None = None


def run(case: Case, *, cache: Path) -> xr.Dataset:
    """Train and measure, unless that is in the cache; a damaged entry is made again.

    Returns:
        What `measured` gives, with `diverged`: 1 for a network whose loss, outputs or credit are no
        longer finite. Nothing can be measured there: all else is NaN, but its training loss.
    """
    images = load(case.data)
    path = cache / f"credit_{key_of(case, images)}.nc"
    kept = read_dataset(path, having="final_accuracy")
    if kept is not None:  # those made before there was a flag had not diverged
        return kept if "diverged" in kept else _flagged(kept, False)
    if case.per_class is not None:
        images = subset(images, case.per_class)
    trained = train(case.method, images, seed=case.seed, recipe=case.recipe)
    diverged = has_diverged(trained, images)
    found = _flagged((undefined if diverged else measured)(trained, images), diverged)
    write_atomically({path: netcdf.writer(found)})
    return found


def gauge(
    images: Images, seed: int, recipe: Recipe, credits: Mapping[str, Any], *, epochs: int
) -> dict[str, xr.Dataset]:
    """Train by backprop, then measure every credit on the features of that network.

    Args:
        images: To train on, and to measure on.
        seed: Of network and credits.
        recipe: How the network is trained.
        credits: By name, what makes a credit of a seed.
        epochs: Of fitting, for credits that learn.
    """
    model = train("BP", images, seed=seed, recipe=recipe).model
    seen, test = (images.x_train, images.y_train), (images.x_test[:1024], images.y_test[:1024])
    found = {}
    for name, make in credits.items():
        credit = make(seed=seed)
        if hasattr(credit, "fit"):
            credit.fit(model, seen, LAYERS, epochs=epochs, batch_size=recipe.batch_size, seed=seed)
        found[name] = nudging.measure(model, test, credit, LAYERS, eta=0.003, samples=None)
    return found


def joined(runs: Sequence[xr.Dataset], methods: Sequence[str], seeds: Sequence[int]) -> xr.Dataset:
    """Runs, seed by seed for each method, as one Dataset; the feedback stays with its own run."""
    plain = [r.drop_vars([v for v in r.variables if str(v).startswith("credit.")]) for r in runs]
    along = xr.Variable("seed", list(seeds), {"long_name": "seed of weights, feedback and order"})
    label = xr.Variable("rule", list(methods), {"long_name": "credit, with or without penalty"})
    pieces = [
        xr.concat(plain[i : i + len(seeds)], along, combine_attrs="drop_conflicts")
        for i in range(0, len(plain), len(seeds))
    ]
    return xr.concat(pieces, label, combine_attrs="drop_conflicts")


def key_of(case: Case, images: Images) -> str:
    """What a run is kept under: where the data lie does not matter, what they are does."""
    text = json.dumps(asdict(case) | {"data": images.fingerprint}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def has_diverged(trained: Trained, images: Images, *, samples: int = 1024) -> bool:
    """Whether training loss, outputs or credit are anywhere infinite or NaN."""
    state = nudging.observe(trained.model, images.x_test[:samples], images.y_test[:samples], LAYERS)
    credit = (trained.credit or nudging.backprop)(state)
    finite = all(bool(t.isfinite().all()) for t in (state.outputs, *credit.values()))
    return not (finite and np.isfinite(trained.curves["train_loss"]).all())


def undefined(trained: Trained, images: Images) -> xr.Dataset:
    """What `measured` gives, without the credit and with NaN for all but the training loss."""
    model = copy.deepcopy(trained.model)
    model.load_state_dict(trained.initial)  # as good as any that can be measured
    found = measured(replace(trained, model=model, credit=None), images)
    empty = xr.full_like(found.astype(float), np.nan).assign(train_loss=found["train_loss"])
    name = "backprop" if trained.credit is None else type(trained.credit).__name__
    return empty.assign_attrs(credit=name)


def measured(trained: Trained, images: Images, *, samples: int = 1024) -> xr.Dataset:
    """Nudging, alignment and correlation by block, and single numbers, with the credit itself.

    Deep means are over all hidden states but the first and the last: h_1 ... h_{L-1}.
    """
    credit = trained.credit or nudging.backprop
    data = images.x_test[:samples], images.y_test[:samples]
    found = nudging.measure(trained.model, data, credit, LAYERS, eta=ETAS, samples=None)
    deep = found.isel(layer=slice(1, -1)).mean("layer", skipna=False)
    weights = ["embed.weight", "blocks.*.w2.weight"]
    drift = nudging.drift(trained.initial, trained.model, over=weights)["drift"]
    curve = trained.curves["train_loss"].values
    numbers = {
        "final_accuracy": ("test accuracy", trained.curves["test_accuracy"].values[-1]),
        "loss_decrease": ("training loss, first minus last epoch", curve[0] - curve[-1]),
        "deep_cosine": ("deep cosine with the gradient", deep["cosine"]),
        "deep_correlation": ("deep rho", deep["correlation"]),
        "deep_change": ("deep nudge", deep["loss_change"].sel(eta=0.01)),
        "last_norm": ("median norm of the last state", found["hidden_norm"][-1]),
        "last_gradient": ("norm of its gradient, 1/N included", found["mean_loss_gradient_norm"][-1]),
        "block_drift": ("drift of W2, mean over blocks", drift[1:].mean()),
        "embedding_drift": ("drift of the embedding", drift[0]),
    }
    scalars = {
        name: ((), np.float64(value), {"long_name": text})
        for name, (text, value) in numbers.items()
    }
    return found.merge(trained.curves, combine_attrs="override").assign(scalars)


def _flagged(found: xr.Dataset, diverged: bool) -> xr.Dataset:
    text = {"long_name": "whether the network diverged"}
    return found.assign(diverged=((), int(diverged), text))
