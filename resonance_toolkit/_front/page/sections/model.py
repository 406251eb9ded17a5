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
from resonance_toolkit._front.page.sections.part import (
    Findings,
    examination_of,
    result_of,
)
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

    numbers = [
        Number("mean main loss", loss, say_loss_of_chance(node)),
        Number("accuracy", accuracy, say_chance(node)),
        Number("parameters", n_parameters),
        Number(
            "parameters that are trained",
            n_trained,
            "all of them" if n_trained == n_parameters else "the others are frozen",
        ),
        Number("time of a forward pass", seconds, _say_batch(n_batch), units="s"),
        Number(
            "operations of a forward pass",
            value_of(result, "forward_flops"),
            "of the same batch; a multiplication and its addition count as two",
        ),
    ]
    cost = "" if math.isnan(seconds) else f" A forward pass takes {write_seconds(seconds)}."
    lead = (
        f"{result.attrs.get('model', 'The model')} has {write_number(n_parameters)} parameters "
        f"and {count(result.sizes.get('layer', 0), 'layer')} to which branches are attached.{cost}"
    )

    understood = [
        f"{label} {result.attrs[name]}."
        for name, label in (
            ("inputs", "Inputs were understood as"),
            ("targets", "Targets were understood as"),
            ("loss", "The main loss is"),
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


def _count_classes(node: xr.DataTree) -> int:
    """Return how many classes there are, as `/model` has it; 0 if nobody knows."""
    model = examination_of(node).children.get("model", node)
    for name in ("n_classes", "classes"):
        number = as_number(model.attrs.get(name))
        if math.isfinite(number) and number >= 2:
            return int(number)
    return 0


def say_chance(node: xr.DataTree) -> str:
    """Say what an accuracy is held against: what guessing would reach."""
    n_classes = _count_classes(node)
    if not n_classes:
        return "from 0 to 1; chance is 1 / C for C equally frequent classes"
    chance = write_number(1 / n_classes)
    return f"from 0 to 1; chance is {chance}, for {n_classes} equally frequent classes"


def say_loss_of_chance(node: xr.DataTree) -> str:
    """Say what the main loss is held against: what guessing would give, where that is known."""
    attributes = {**node.attrs, **examination_of(node).attrs}
    loss = str(attributes.get("loss", "")).lower().replace("_", "")
    n_classes = _count_classes(node)

    if "binarycrossentropy" in loss or "bcewithlogits" in loss:
        return f"0 is perfect; an even guess for each label gives {write_number(math.log(2))}"
    if "crossentropy" not in loss:
        return "lower is better; its range is that of the loss"
    if not n_classes:
        return "0 is perfect; guessing among C equal classes gives ln C"
    guess = write_number(math.log(n_classes))
    return f"0 is perfect; guessing among {n_classes} equal classes gives ln {n_classes} = {guess}"


def _say_batch(n_batch: float) -> str:
    return "" if math.isnan(n_batch) else f"of a batch of {count(n_batch, 'sample')}"
