"""`/nudging`: does a step against a credit lower the loss?"""

from __future__ import annotations

import math

import xarray as xr

from resonance_toolkit._front.page.drawings.nudging import by_rule
from resonance_toolkit._front.page.numbers import Number, value_of, write_number
from resonance_toolkit._front.page.sections.part import Findings, result_of
from resonance_toolkit._front.page.sections.words import keep_defined

_CREDITS = {
    "backprop": "the most that a step of this length can do, to first order",
    "auxiliary": "below 0: the branches' signal lowers the main loss",
    "random": "about 0: a random step neither helps nor hurts",
}


def describe(node: xr.DataTree) -> Findings:
    """Say whether the branches' signal is of use to each block."""
    result = by_rule(result_of(node))
    rules = [str(name) for name in result["rule"].values] if "rule" in result.dims else []
    changes = {rule: value_of(result.sel(rule=rule), "loss_change") for rule in rules}
    cosines = {rule: value_of(result.sel(rule=rule), "cosine") for rule in rules}

    numbers = [
        Number(
            f"change of the loss by a nudge, {_label(rule)}",
            changes[rule],
            _CREDITS.get(rule, "below 0: the credit helps"),
            low=value_of(result.sel(rule=rule), "loss_change", "min"),
            high=value_of(result.sel(rule=rule), "loss_change", "max"),
        )
        for rule in rules
    ]

    numbers += [
        Number(
            f"cosine of the credit with the gradient, {_label(rule)}",
            cosines[rule],
            "1: the gradient itself; 0: a random direction",
        )
        for rule in rules
        if rule != "backprop"
    ]
    if not rules:
        numbers.append(
            Number(
                "change of the loss", value_of(result, "loss_change"), "below 0: the credit helps"
            )
        )

    return Findings(
        lead=_say_lead(changes),
        numbers=keep_defined(numbers),
        meanings=[
            f"The output of one block at a time is moved by a small step{_say_eta(result)} against "
            "a credit, and the main loss is measured again. The gradient of the main loss "
            "(backprop) shows how much such a step can achieve, a random direction what chance "
            "does. Numbers are means over blocks; the ranges span the blocks.",
        ],
        results=[result_of(node)],
    )


def _label(rule: str) -> str:
    return {"auxiliary": "auxiliary (the branches' signal)"}.get(rule, rule)


def _say_eta(result: xr.Dataset) -> str:
    """Say how long the step was, if there was one length only."""
    kinds = {"rms": "root mean square eta", "unit": "length eta"}
    kind = kinds.get(str(result.attrs.get("normalisation")))
    if kind is None or "eta" not in result.coords or result["eta"].size != 1:
        return ""
    return f" ({kind} = {write_number(float(result['eta']))})"


def _say_lead(changes: dict[str, float]) -> str:
    auxiliary = changes.get("auxiliary", math.nan)
    backprop = changes.get("backprop", math.nan)
    if math.isnan(auxiliary) or math.isnan(backprop) or backprop == 0:
        return ""

    # Backprop lowers the loss, so a positive share means that the branches' signal does, too.
    share = auxiliary / backprop
    if share > 0:
        return (
            "A small step along the branches' signal lowers the loss by "
            f"{write_number(share)} of what backprop achieves, averaged over the blocks."
        )

    return (
        "A small step along the branches' signal raises the loss by "
        f"{write_number(auxiliary)} on average, where backprop lowers it by "
        f"{write_number(abs(backprop))}."
    )
