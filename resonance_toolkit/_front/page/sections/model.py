"""`/model`: what was examined."""

from __future__ import annotations

import math

import xarray as xr

from resonance_toolkit._front.page.numbers import (
    Number,
    as_number,
    value_of,
    write_number,
    write_seconds,
)
from resonance_toolkit._front.page.sections.part import Findings, result_of
from resonance_toolkit._front.page.sections.words import count, join_sentences, keep_defined


def describe(node: xr.DataTree) -> Findings:
    """Say what the model is, how good it is, and what a pass costs."""
    result = result_of(node)
    n_parameters = value_of(result, "n_parameters")
    n_trained = value_of(result, "n_trained_parameters")
    loss = value_of(result, "loss")
    accuracy = value_of(result, "accuracy")
    seconds = value_of(result, "forward_seconds")
    n_batch = value_of(result, "batch_samples")
    n_classes = count_classes(result)

    chance = 1 / n_classes if n_classes else math.nan

    numbers = [
        Number("mean loss", loss, _say_loss_of_chance(n_classes)),
        Number("accuracy", accuracy, _say_chance(n_classes, chance)),
        Number("parameters", n_parameters),
        Number(
            "parameters that are trained",
            n_trained,
            "all of them" if n_trained == n_parameters else "the others are frozen",
        ),
        Number("time of a forward pass", seconds, _say_batch(n_batch), units="s"),
        Number("operations of a forward pass", value_of(result, "forward_flops"), "multiply-adds"),
    ]
    cost = "" if math.isnan(seconds) else f" A forward pass takes {write_seconds(seconds)}."
    lead = (
        f"{result.attrs.get('model', 'The model')} has {write_number(n_parameters)} parameters "
        f"and {count(result.sizes.get('layer', 0), 'attachment point')} for branches.{cost}"
    )

    understood = [
        f"{label}: {result.attrs[name]}."
        for name, label in (
            ("inputs", "Inputs understood as"),
            ("targets", "Targets understood as"),
            ("loss", "Loss"),
        )
        if result.attrs.get(name) not in (None, "", "none")
    ]
    reason = str(result.attrs.get("blocks_reason", ""))

    return Findings(
        lead=lead,
        numbers=keep_defined(numbers),
        meanings=[
            text
            for text in (
                join_sentences(*understood),
                f"Attachment points: {reason.rstrip('.')}." if reason else "",
            )
            if text
        ],
    )


def count_classes(result: xr.Dataset) -> int:
    """Return how many classes there are; 0 if that is unknown or there are none."""
    for name in ("n_classes", "classes"):
        value = result.attrs.get(name, value_of(result, name))
        number = as_number(value)
        if math.isfinite(number) and number >= 2:
            return int(number)
    return 0


def _say_chance(n_classes: int, chance: float) -> str:
    if not n_classes:
        return "from 0 to 1; chance is 1 over the number of classes"
    return f"from 0 to 1; chance among {n_classes} equal classes is {write_number(chance)}"


def _say_loss_of_chance(n_classes: int) -> str:
    if not n_classes:
        return "0 is perfect; guessing among C equal classes has a cross-entropy of ln C"
    return f"0 is perfect; guessing among {n_classes} equal classes gives " + write_number(
        math.log(n_classes)
    )


def _say_batch(n_batch: float) -> str:
    return "" if math.isnan(n_batch) else f"of a batch of {count(n_batch, 'sample')}"
