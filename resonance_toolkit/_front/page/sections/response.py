"""`/response`: the same batches, plain and with branches."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from resonance_toolkit._front.page.numbers import Number, value_of, write_number
from resonance_toolkit._front.page.sections.model import say_chance, say_loss_of_chance
from resonance_toolkit._front.page.sections.part import Findings, result_of
from resonance_toolkit._front.page.sections.words import (
    count,
    describe_cosine,
    join_sentences,
    keep_defined,
    write_interval,
)


def describe(node: xr.DataTree) -> Findings:
    """Say whether branches helped, and whether they made features readable."""
    result = result_of(node)
    measure = "accuracy" if not math.isnan(_final_mean(result, "accuracy", "plain")) else "loss"
    cosine = value_of(result, "cosine_total")

    numbers = [
        *_final_numbers(result, "accuracy", say_chance(node)),
        *_final_numbers(result, "loss", say_loss_of_chance(node)),
        Number(
            "mean cosine of both gradients during training",
            cosine,
            "1: same direction; 0: unrelated, like two random directions; \u22121: opposed; the "
            "range is over seeds and updates",
            low=value_of(result, "cosine_total", "min"),
            high=value_of(result, "cosine_total", "max"),
        ),
        *_listening_numbers(result, say_chance(node)),
    ]

    return Findings(
        lead=_say_difference(result, measure),
        numbers=keep_defined(numbers),
        meanings=[
            text for text in (*_explain_experiment(result, cosine), _say_readable(result)) if text
        ],
        results=[result],
    )


def _final_mean(result: xr.Dataset, name: str, arm: str) -> float:
    """Mean over seeds at the last step that was measured for all of them."""
    if name not in result or "arm" not in result.dims or arm not in result["arm"].values:
        return math.nan
    values = result[name].sel(arm=arm)
    return float(values.isel(step=-1).mean("seed")) if "step" in values.dims else math.nan


def _final_numbers(result: xr.Dataset, name: str, reference: str) -> list[Number]:
    return [
        Number(f"held-out {name}, plain", _final_mean(result, name, "plain"), reference),
        Number(f"held-out {name}, with branches", _final_mean(result, name, "branches"), reference),
        Number(
            f"difference in held-out {name}, with branches minus plain",
            value_of(result, f"{name}_difference"),
            "0: no effect; paired by seed, 95 % interval over seeds and held-out samples",
            low=value_of(result, f"{name}_difference_low"),
            high=value_of(result, f"{name}_difference_high"),
        ),
    ]


def _listening_numbers(result: xr.Dataset, chance: str = "") -> list[Number]:
    if "listening_accuracy" not in result:
        return []

    return [
        Number(
            f"accuracy of listening heads, {label}",
            value_of(result.sel(arm=[arm]), "listening_accuracy"),
            f"mean over attachment points and seeds; {chance}",
        )
        for arm, label in (("plain", "plain"), ("branches", "with branches"))
        if arm in result["arm"].values
    ]


def _say_difference(result: xr.Dataset, measure: str) -> str:
    plain = _final_mean(result, measure, "plain")
    branches = _final_mean(result, measure, "branches")
    if math.isnan(plain) or math.isnan(branches):
        return ""

    difference = value_of(result, f"{measure}_difference")
    low = value_of(result, f"{measure}_difference_low")
    high = value_of(result, f"{measure}_difference_high")
    steps = int(np.max(result["step"].values)) if "step" in result.coords else 0

    sentence = (
        f"After {count(steps, 'update')}, models trained with branches reach a held-out "
        f"{measure} of {write_number(branches)}, plain ones {write_number(plain)}: a difference of "
        f"{write_number(difference, signed=True)} over {count(result.sizes['seed'], 'seed')}"
    )
    if math.isnan(low) or math.isnan(high):
        return f"{sentence}, too few for an interval."

    excludes_zero = low > 0 or high < 0

    return f"{sentence} (95 % interval {write_interval(low, high, signed=True)}). The interval " + (
        "does not contain zero."
        if excludes_zero
        else "contains zero, so this experiment does not show a difference."
    )


def _explain_experiment(result: xr.Dataset, cosine: float) -> list[str]:
    settings = result.attrs
    sentences = [
        "Both arms start from the given weights and see the same batches in the same order. They "
        "differ only in the branches, so the difference is taken seed by seed."
    ]
    if "optimizer" in settings:
        sentences.append(
            f"Trained with {settings['optimizer']}, learning rate {settings.get('lr', '?')}, on "
            f"{settings.get('n_train', '?')} samples in batches of "
            f"{settings.get('batch_size', '?')}; measured on {settings.get('n_held_out', '?')} "
            "other samples."
        )

    texts = [" ".join(sentences)]
    if not math.isnan(cosine):
        texts.append(
            f"During training, the two gradients have a mean cosine of {write_number(cosine)}: "
            f"{describe_cosine(cosine)}. The cosine shows whether branches and main loss ask for "
            "the same step at that moment. Whether the model ends up better is shown by the "
            "difference above."
        )

    return texts


def _say_readable(result: xr.Dataset) -> str:
    # With listening heads of one arm only there is nothing to compare.
    numbers = [number.value for number in _listening_numbers(result)]
    if len(numbers) < 2 or any(map(math.isnan, numbers)):
        return ""

    plain, branches = numbers
    low = value_of(result, "listening_difference_low")
    high = value_of(result, "listening_difference_high")
    more = "more" if low > 0 else "less" if high < 0 else "about as much"
    than = "as" if more.startswith("about") else "than"

    return join_sentences(
        "That the classes can be read from a layer does not mean that the model uses them. After "
        f"training, listening heads read {more} from the models with branches {than} from the "
        f"plain ones: an accuracy of {write_number(branches)}, against {write_number(plain)}.",
        _say_network(result),
    )


def _say_network(result: xr.Dataset) -> str:
    low = value_of(result, "accuracy_difference_low")
    high = value_of(result, "accuracy_difference_high")
    if math.isnan(low) or math.isnan(high):
        return ""
    if low > 0:
        return "The models themselves also answer better."
    if high < 0:
        return "The models themselves answer worse."

    return "These seeds do not show whether the models themselves answer better."
