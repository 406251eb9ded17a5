"""`/attention`: where the model looks."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.numbers import Number, as_number, value_of, write_number
from resonance_toolkit._front.page.sections.part import Findings, child_of, result_of
from resonance_toolkit._front.page.sections.words import keep_defined


def describe(node: xr.DataTree) -> Findings:
    """Say how focused attention is, and whether it has sinks."""
    result = result_of(node)
    sinks = child_of(node, "sinks")
    maps = child_of(node, "maps")
    if maps is not None and "maps_sample" in maps.dims:
        maps = maps.rename(maps_sample="sample")  # fewer than the statistics are of
    entropy = value_of(result, "normalised_entropy")
    uniform = _uniform_peak(result)
    mass = as_number(result.attrs.get("mass", 0.9))

    numbers = [
        Number(
            "entropy, relative to uniform attention",
            entropy,
            "1: uniform attention; 0: all on one token",
            low=value_of(result, "normalised_entropy", "min"),
            high=value_of(result, "normalised_entropy", "max"),
        ),
        Number("largest attention weight", value_of(result, "peak"), _say_peak(uniform)),
        Number("Gini index", value_of(result, "gini"), "0: uniform attention; near 1: one token"),
        Number(
            f"share of tokens that hold {write_number(mass)} of the attention",
            value_of(result, "mass_coverage"),
            f"uniform attention: {write_number(mass)}",
        ),
        Number(
            "similarity of heads",
            value_of(result, "head_similarity"),
            "mean cosine of two heads' attention; 0: they look at different tokens, 1: at the same",
        ),
        *_sink_numbers(sinks),
    ]

    return Findings(
        lead=_say_lead(result, entropy),
        numbers=keep_defined(numbers),
        meanings=[
            "The numbers are means over samples, layers and heads; the range of the entropy is "
            "that of single heads. Neither widely spread nor focused attention is good or bad by "
            "itself: compare layers, or runs.",
        ],
        results=[part for part in (result, maps, sinks) if part is not None],
    )


def _uniform_peak(result: xr.Dataset) -> float:
    """Return the weight of each token under uniform attention, if all layers agree."""
    if "n_keys" not in result.coords:
        return math.nan
    n_keys = result["n_keys"].values.astype(float)
    prefix = result["n_prefix"].values if result.attrs.get("keys") == "patches" else 0

    # Layers with windows of several sizes have no one number to compare with.
    counts = np.unique(n_keys - prefix)
    return float(1 / counts[0]) if len(counts) == 1 and counts[0] > 0 else math.nan


def _say_peak(uniform: float) -> str:
    if math.isnan(uniform):
        return "uniform attention: 1 over the number of tokens"
    return f"uniform attention: {write_number(uniform)}; 1: all on one token"


def _sink_numbers(sinks: xr.Dataset | None) -> list[Number]:
    if sinks is None:
        return []

    return [
        Number(
            "share of heads with an attention sink",
            value_of(sinks, "sink_share"),
            "0: none; a sink is one token that gets more than "
            f"{sinks.attrs.get('threshold', 'its share')} of the attention",
        ),
        Number(
            "share of heads with a sink at the first token",
            value_of(sinks, "first_sink_share"),
            "usual in language models; rare in vision models",
        ),
        Number(
            "share of samples with massive activations",
            value_of(sinks, "massive_share"),
            f"activations above {_as_word(sinks.attrs.get('massive'))} times the median",
        ),
    ]


def _as_word(value: object) -> str:
    number = as_number(value)
    return "many" if math.isnan(number) else write_number(number)


def _say_lead(result: xr.Dataset, entropy: float) -> str:
    if math.isnan(entropy) or "layer" not in result.dims:
        return ""

    other_dims = [dim for dim in result["normalised_entropy"].dims if dim != "layer"]
    by_layer = result["normalised_entropy"].mean(other_dims)
    if by_layer.isnull().all() or by_layer.size < 2:
        return f"Attention has {write_number(entropy)} of the entropy of uniform attention."

    focused = str(by_layer["layer"].values[np.nanargmin(by_layer.values)])

    return (
        f"Attention has {write_number(entropy)} of the entropy of uniform attention, on average. "
        f"It is most focused in {focused}, with {write_number(float(by_layer.min()))}."
    )
