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
from lab.results.files import cache_writer, check_writable, read_dataset, write_atomically
from lab.training.local_training import LocalRecipe, TrainedNetwork, train_locally

ETAS = (0.003, 0.01)
MEASURED_IMAGES = 1024  # of the test images, at most

# What entries of the cache may still call by its earlier name.
RENAMED = {
    "grad_norm": "gradient_norm",
    "mean_loss_grad_norm": "mean_loss_gradient_norm",
}


@dataclass(frozen=True)
class Case:
    """What to train.

    Attributes:
        method: One of `lab.training.local_training.CREDITS`.
        seed: Of everything.
        recipe: How.
        data: As for `lab.data.images.load`.
        per_class: Training images of each class; None takes all.
    """

    method: str
    seed: int
    recipe: LocalRecipe
    data: str
    per_class: int | None = None


def run_case(case: Case, *, cache: Path) -> xr.Dataset:
    """Train and measure, unless that is in the cache; a damaged entry is made again.

    Returns:
        What `measure_network` gives, with `diverged`: 1 for a network whose loss, outputs or credit
        are no longer finite. Nothing can be measured there: all else is NaN, but its training loss.
    """
    images = load(case.data)
    path = cache / f"credit_{key_of(case, images)}.nc"
    entry = read_dataset(path, required="final_accuracy", renamed=RENAMED)
    if entry is not None:
        # Entries without the flag were written when only finite networks could be measured.
        return entry if "diverged" in entry else _flag_diverged(entry, False)

    check_writable(path)
    if case.per_class is not None:
        images = subset(images, case.per_class)
    network = train_locally(case.method, images, seed=case.seed, recipe=case.recipe)

    diverged = has_diverged(network, images)
    measure = fill_undefined if diverged else measure_network
    result = _flag_diverged(measure(network, images), diverged)
    write_atomically({path: cache_writer(result)})
    return result


def gauge_credits(
    images: Images, seed: int, recipe: LocalRecipe, credits: Mapping[str, Any], *, epochs: int
) -> dict[str, xr.Dataset]:
    """Train by backprop, then measure every credit on the features of that network.

    Args:
        images: To train on, and to measure on.
        seed: Of network and credits.
        recipe: How the network is trained.
        credits: By name, what makes a credit of a seed.
        epochs: Of fitting, for credits that learn.
    """
    model = train_locally("BP", images, seed=seed, recipe=recipe).model
    training_data = images.x_train, images.y_train
    test_data = images.x_test[:MEASURED_IMAGES], images.y_test[:MEASURED_IMAGES]

    results = {}
    for name, make_credit in credits.items():
        credit = make_credit(seed=seed)
        if hasattr(credit, "fit"):
            fitting = {"epochs": epochs, "batch_size": recipe.batch_size, "seed": seed}
            credit.fit(model, training_data, LAYERS, **fitting)
        results[name] = nudging.measure(model, test_data, credit, LAYERS, eta=0.003, samples=None)
    return results


def join_cases(
    runs: Sequence[xr.Dataset], methods: Sequence[str], seeds: Sequence[int]
) -> xr.Dataset:
    """Join runs, seed by seed for each method; the feedback stays with its own run."""
    without_credit = [
        run.drop_vars([name for name in run.variables if str(name).startswith("credit.")])
        for run in runs
    ]

    # Runs of a method lie together, one for each seed.
    seed_label = xr.Variable(
        "seed", list(seeds), {"long_name": "seed of weights, feedback and order"}
    )
    by_method = [
        xr.concat(
            without_credit[start : start + len(seeds)], seed_label, combine_attrs="drop_conflicts"
        )
        for start in range(0, len(without_credit), len(seeds))
    ]

    rule_label = xr.Variable(
        "rule", list(methods), {"long_name": "credit, with or without penalty"}
    )
    return xr.concat(by_method, rule_label, combine_attrs="drop_conflicts")


def key_of(case: Case, images: Images) -> str:
    """Return what a run is kept under: where the data lie does not matter, what they are does."""
    text = json.dumps(asdict(case) | {"data": images.fingerprint}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def has_diverged(network: TrainedNetwork, images: Images) -> bool:
    """Tell whether training loss, outputs or credit are anywhere infinite or NaN."""
    x, y = images.x_test[:MEASURED_IMAGES], images.y_test[:MEASURED_IMAGES]
    state = nudging.observe(network.model, x, y, LAYERS)
    credit = (network.credit or nudging.backprop)(state)

    tensors = (state.outputs, *credit.values())
    has_finite_pass = all(bool(tensor.isfinite().all()) for tensor in tensors)
    has_finite_loss = bool(np.isfinite(network.curves["train_loss"]).all())
    return not (has_finite_pass and has_finite_loss)


def fill_undefined(network: TrainedNetwork, images: Images) -> xr.Dataset:
    """Return what `measure_network` would, with NaN for all but the training loss."""
    # The diverged network cannot be measured. Its initial weights can: the result has the
    # variables, shapes and coordinates that are needed here, and its values are thrown away.
    model = copy.deepcopy(network.model)
    model.load_state_dict(network.initial)
    template = measure_network(replace(network, model=model, credit=None), images)

    undefined = xr.full_like(template.astype(float), np.nan)
    name = "backprop" if network.credit is None else type(network.credit).__name__
    return undefined.assign(train_loss=template["train_loss"]).assign_attrs(credit=name)


def measure_network(network: TrainedNetwork, images: Images) -> xr.Dataset:
    """Measure nudging, alignment and correlation by block, and single numbers, with the credit.

    Deep means are over all hidden states but the first and the last: h_1 ... h_{L-1}.
    """
    credit = network.credit or nudging.backprop
    data = images.x_test[:MEASURED_IMAGES], images.y_test[:MEASURED_IMAGES]
    by_block = nudging.measure(network.model, data, credit, LAYERS, eta=ETAS, samples=None)
    deep = by_block.isel(layer=slice(1, -1)).mean("layer", skipna=False)

    # In this order: the first drift is that of the embedding.
    weights = ["embed.weight", "blocks.*.w2.weight"]
    drift = nudging.drift(network.initial, network.model, over=weights)["drift"]

    losses = network.curves["train_loss"].values
    last_gradient = by_block["mean_loss_gradient_norm"][-1]
    numbers = {
        "final_accuracy": ("test accuracy", network.curves["test_accuracy"].values[-1]),
        "loss_decrease": ("training loss, first minus last epoch", losses[0] - losses[-1]),
        "deep_cosine": ("deep cosine with the gradient", deep["cosine"]),
        "deep_correlation": ("deep rho", deep["correlation"]),
        "deep_change": ("deep nudge", deep["loss_change"].sel(eta=0.01)),
        "last_norm": ("median norm of the last state", by_block["hidden_norm"][-1]),
        "last_gradient": ("norm of its gradient, 1/N included", last_gradient),
        "block_drift": ("drift of W2, mean over blocks", drift[1:].mean()),
        "embedding_drift": ("drift of the embedding", drift[0]),
    }
    scalars = {
        name: ((), np.float64(value), {"long_name": text})
        for name, (text, value) in numbers.items()
    }
    return by_block.merge(network.curves, combine_attrs="override").assign(scalars)


def _flag_diverged(result: xr.Dataset, diverged: bool) -> xr.Dataset:
    attributes = {"long_name": "whether the network diverged"}
    return result.assign(diverged=((), int(diverged), attributes))
