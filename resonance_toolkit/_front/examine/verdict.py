"""From the response to a verdict: synergy, conflict, incoherent or undecided.

The held-out difference decides whether branches helped; the cosine of the gradients, whether they
pulled the same way. Only both together are called synergy or conflict: a cosine alone is no effect,
and an effect that the cosine does not share has another cause.

    interval of the difference    cosine's interval           verdict
    branches better               above 0                     synergy
    branches worse                below 0                     conflict
    either                        holds 0, or the opposite    incoherent
    either                        unknown                     undecided
    holds 0, or is unknown        any                         undecided
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit._front.examine.intervals import (
    Difference,
    difference_of,
    seeds_to_decide,
    t_interval,
)

Word: TypeAlias = Literal["synergy", "conflict", "incoherent", "undecided"]

RULE = (
    "The difference is the held-out {measure} with branches minus that without, after the last "
    "update, paired by seed. Its 95 % interval combines the variation between seeds and the "
    "variation between held-out samples (in quadrature, each by Student's t). The cosine is that "
    "of the main and the auxiliary gradient over all shared parameters, averaged over training, "
    "with a 95 % interval over seeds. Synergy: the whole interval of the difference is on the "
    "better side, and that of the cosine above 0. Conflict: the difference is on the worse side, "
    "and the cosine below 0. Incoherent: the difference is on either side, but the interval of "
    "the cosine contains 0 or lies on the opposite side. Undecided: the interval of the "
    "difference contains 0, or one of the two is unknown. Accuracy is compared where there are "
    "classes, otherwise the loss."
)

_HOLDS_FOR = (
    "longer training, other data or another `alpha` might: this answer holds for the given "
    "weights and this many updates"
)


@dataclass(frozen=True)
class Verdict:
    """What the experiment says, by which rule, and what would change it."""

    word: Word
    sentence: str
    measure: str
    low: float
    high: float
    remedy: str

    def as_attributes(self) -> dict[str, str | float]:
        """As attributes of the tree."""
        return {
            "verdict": self.word,
            "verdict_sentence": self.sentence,
            "verdict_rule": RULE.format(measure=self.measure),
            "verdict_measure": self.measure,
            "verdict_interval_low": self.low,
            "verdict_interval_high": self.high,
            "verdict_remedy": self.remedy,
        }


def judge(response: xr.Dataset | None, reason: str = "", only_class: int | None = None) -> Verdict:
    """Judge an experiment.

    Args:
        response: The node `/response`; None if there is none.
        reason: Why there is none.
        only_class: The only class among the targets, if there is but one.
    """
    if response is None:
        because = reason or "the part `response` was not asked for"
        return _undecided(
            f"No training experiment was run: {because.removesuffix('.')}.",
            "loss",
            "a training experiment (the part `response`)",
        )

    diverged = _count_diverged(response)
    measure = "accuracy" if np.isfinite(response["accuracy"].isel(step=-1)).all() else "loss"
    if diverged:
        return _undecided(
            f"The held-out loss is not finite after training ({diverged}), so there is nothing to "
            "compare.",
            "loss",
            "a smaller learning rate (`optimizer`), a smaller `alpha`, or data without NaN",
        )

    difference = difference_of(response, measure)
    text = _describe(measure, difference, response)
    if only_class is not None:
        return _undecided(
            f"Only class {only_class} occurs among the targets, so the model has nothing to "
            f"distinguish: {text}.",
            measure,
            "`data` with several classes",
        )
    if len(difference.by_seed) < 2:
        return _undecided(
            f"One seed cannot show whether this is an effect or chance: {text}.",
            measure,
            "more seeds: `seeds=5`, or a larger `budget`",
        )
    if math.isnan(difference.half_samples):
        return _undecided(
            f"One held-out sample cannot show whether this is an effect or chance: {text}.",
            measure,
            "more samples: in `data`, or as `held_out`",
        )
    return _weigh(response, measure, difference, text)


def _weigh(response: xr.Dataset, measure: str, difference: Difference, text: str) -> Verdict:
    low = difference.low
    high = difference.high

    # In points where the sentence has points: an accuracy is a share in the tree.
    unit = 100 if measure == "accuracy" else 1
    interval = f"{unit * low:+.3g} to {unit * high:+.3g}, {len(difference.by_seed)} seeds"
    effect = f"{text} (95 % interval {interval})"

    cosine, cosine_low, cosine_high = t_interval(_cosines_of(response))
    direction = "no cosine of the two gradients was recorded"
    if math.isfinite(cosine):
        direction = (
            f"the mean cosine of the two gradients is {cosine:+.2f} "
            f"({cosine_low:+.2f} to {cosine_high:+.2f})"
        )

    if low <= 0 <= high:
        loss_sentence = _describe_loss_beside(response, measure)
        joint = "but" if difference.mean else "and"
        sentence = (
            f"No clear effect of the branches: {text}, {joint} the 95 % interval ({interval}) "
            f"contains zero. {loss_sentence}{direction[0].upper()}{direction[1:]}."
        )
        remedy = _say_what_would_decide(difference, measure)
        return Verdict("undecided", sentence, measure, low, high, remedy)

    has_helped = (difference.mean > 0) == (measure == "accuracy")
    verb = "helped" if has_helped else "hurt"
    if not math.isfinite(cosine):
        sentence = f"The branches {verb}: {effect}. But {direction}, so it is not known why."
        return Verdict(
            "undecided", sentence, measure, low, high, "layers whose gradients both losses reach"
        )

    word: Word = "synergy" if has_helped else "conflict"
    is_shared = cosine_low > 0 if has_helped else cosine_high < 0
    joint = "and"
    end = ""
    if not is_shared:
        word = "incoherent"
        joint = "but"
        end = ", which does not explain it"
    sentence = f"The branches {verb}: {effect}, {joint} {direction}{end}."
    return Verdict(word, sentence, measure, low, high, _HOLDS_FOR)


def _undecided(sentence: str, measure: str, remedy: str) -> Verdict:
    return Verdict("undecided", sentence, measure, math.nan, math.nan, remedy)


def _say_what_would_decide(difference: Difference, measure: str) -> str:
    n_seeds = seeds_to_decide(difference)
    if n_seeds is not None:
        return f"more seeds: about {n_seeds} would settle an effect of this size and spread"
    if difference.half_samples >= abs(difference.mean) > 0:
        return (
            "more held-out samples (`held_out`, or more `data`): with these, the difference is "
            f"uncertain by \u00b1{_write_size(difference.half_samples, measure)}, however many "
            "seeds there are"
        )
    return (
        "more updates, or another `alpha`; for an effect as small as this, it would take more than "
        "a thousand seeds"
    )


def _write_size(size: float, measure: str) -> str:
    """Write a difference; of accuracies, which are shares in the tree, in percentage points."""
    if measure == "accuracy":
        return f"{abs(100 * size):.3g} percentage points"
    return f"{abs(size):.3g}"


def _describe(measure: str, difference: Difference, response: xr.Dataset) -> str:
    mean = difference.mean
    n_steps = int(response["step"].values[-1])
    updates = f"after {n_steps} updates" if n_steps > 1 else "after one update"
    if not mean:
        return f"{updates}, held-out {measure} is the same with branches as without"

    change = _write_size(mean, measure)
    side = "higher" if mean > 0 else "lower"
    return f"{updates}, held-out {measure} is {change} {side} with branches than without"


def _describe_loss_beside(response: xr.Dataset, measure: str) -> str:
    """The loss, where it tells the arms apart and the accuracy does not: coarser, it may not."""
    if measure == "loss":
        return ""
    loss = difference_of(response, "loss")
    if not (loss.low > 0 or loss.high < 0):
        return ""
    side = "higher" if loss.mean > 0 else "lower"
    return (
        f"The held-out loss, a finer measure, is clearly {side} with branches "
        f"({loss.low:+.3g} to {loss.high:+.3g}). "
    )


def _count_diverged(response: xr.Dataset) -> str:
    """Say how many runs of each arm ended in a loss that is not a number; "" if none."""
    last = response["loss"].isel(step=-1)
    plain, branches = (
        int((~np.isfinite(last.sel(arm=arm).values)).sum()) for arm in ("plain", "branches")
    )
    if not plain + branches:
        return ""

    n_seeds = response.sizes["seed"]
    return f"in {plain} of {n_seeds} plain runs and {branches} of {n_seeds} with branches"


def _cosines_of(response: xr.Dataset) -> NDArray[np.float64]:
    """One cosine per seed: the mean over what was recorded while training."""
    if "cosine_total" not in response:
        return np.full(response.sizes["seed"], np.nan)
    means: NDArray[np.float64] = response["cosine_total"].mean("trace_step").values
    return means
