"""From the response to a verdict: synergy, conflict, incoherent or undecided.

The held-out difference decides whether branches helped; the cosine of the gradients, whether they
pulled the same way. Only both together are called synergy or conflict: a cosine alone is no effect,
and an effect against the cosine has another cause.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit._front.examine.intervals import seeds_to_decide, t_interval

Word: TypeAlias = Literal["synergy", "conflict", "incoherent", "undecided"]

RULE = (
    "The difference is the held-out {measure} with branches minus plain, paired by seed, with its "
    "95 % interval by Student's t over seeds; the cosine is that of the main and the auxiliary "
    "gradient over all shared parameters, averaged over training, with its interval alike. "
    "synergy: the whole interval on the helpful side of 0, and the cosine's not wholly negative; "
    "conflict: on the harmful side, and the cosine's not wholly positive; incoherent: the effect "
    "is there, and the cosine says the opposite; undecided: the interval holds 0, or there is none."
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


def judge(response: xr.Dataset | None, reason: str = "") -> Verdict:
    """Judge an experiment.

    Args:
        response: The node `/response`; None if there is none.
        reason: Why there is none.
    """
    if response is None:
        return Verdict(
            "undecided",
            f"No training experiment was made: {reason or 'it was not asked for'}.",
            "loss",
            math.nan,
            math.nan,
            "what stands in the way of the part `response`",
        )

    differences = response["final_accuracy_difference"].values
    measure = "accuracy"
    if not np.isfinite(differences).all():
        differences = response["final_loss_difference"].values
        measure = "loss"

    mean, low, high = t_interval(differences)
    if not math.isfinite(mean):
        return Verdict(
            "undecided",
            "The held-out loss is not finite after training, so that nothing can be compared.",
            measure,
            math.nan,
            math.nan,
            "a smaller learning rate (`optimizer`), or data without NaN",
        )
    if len(differences) < 2:
        return Verdict(
            "undecided",
            f"One seed tells no effect from chance: {_describe(measure, mean)}.",
            measure,
            math.nan,
            math.nan,
            "more seeds: `seeds=5`, or a larger `budget`",
        )
    return _weigh(differences, measure, (mean, low, high), _cosines_of(response))


def _weigh(
    differences: NDArray[np.float64],
    measure: str,
    interval: tuple[float, float, float],
    cosines: NDArray[np.float64],
) -> Verdict:
    mean, low, high = interval
    cosine, cosine_low, cosine_high = t_interval(cosines)
    effect = (
        f"{_describe(measure, mean)} (95 % interval {low:+.3g} to {high:+.3g}, "
        f"{len(differences)} seeds)"
    )
    direction = "the gradients share no parameter"
    if math.isfinite(cosine):
        direction = (
            f"the cosine of the gradients is {cosine:+.2f} on average "
            f"({cosine_low:+.2f} to {cosine_high:+.2f})"
        )

    if low <= 0 <= high:
        n_seeds = seeds_to_decide(differences)
        remedy = f"more seeds: about {n_seeds} for an effect of this size and spread"
        if n_seeds is None:
            remedy = (
                "hardly more seeds: for an effect as small as this it would take more than a "
                "thousand; more updates, or another `alpha`"
            )
        sentence = f"No effect of the branches can be told: {effect}; {direction}."
        return Verdict("undecided", sentence, measure, low, high, remedy)

    has_helped = (mean > 0) == (measure == "accuracy")
    is_negative = cosine_high < 0
    is_positive = cosine_low > 0
    contradicts = is_negative if has_helped else is_positive

    word: Word = "synergy" if has_helped else "conflict"
    verb = "helped" if has_helped else "hurt"
    joint = "and"
    if contradicts:
        word = "incoherent"
        joint = "though"
    sentence = f"The branches {verb}: {effect}, {joint} {direction}."
    return Verdict(
        word,
        sentence,
        measure,
        low,
        high,
        "a longer training, other data or another `alpha`: it holds for these updates only",
    )


def _describe(measure: str, mean: float) -> str:
    change = f"{abs(mean):.3g}"
    side = "higher" if mean > 0 else "lower"
    if measure == "accuracy":
        change = f"{abs(100 * mean):.3g} points"
    if not mean:
        return f"held-out {measure} is the same with branches as without"
    return f"held-out {measure} is {change} {side} with branches"


def _cosines_of(response: xr.Dataset) -> NDArray[np.float64]:
    """One cosine per seed: the mean over what was recorded while training."""
    if "cosine_total" not in response:
        return np.full(response.sizes["seed"], np.nan)
    means: NDArray[np.float64] = response["cosine_total"].mean("trace_step").values
    return means
