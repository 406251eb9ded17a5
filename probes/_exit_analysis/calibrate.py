import math
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from probes._exit_analysis.bounds import mean_p_value, rate_bound, risk_p_value
from probes._exit_analysis.calibration_target import CalibrationTarget, check_target
from probes._exit_analysis.leaving import (
    Clusters,
    check_record,
    check_thresholds,
    exit_coordinate,
    exit_layer_of_tokens,
    exit_sets,
)
from resonance_toolkit import provenance

_LONG_NAMES = {
    "tau": "threshold",
    "exit_rate": "share of tokens that leave early",
    "agreement": "share of tokens predicted as by the whole model",
    "increase": "relative increase of perplexity",
    "p_value": "of the test that this threshold passed",
    "rate_bound": "largest distance of the exit rate from its expectation",
}

_NOBODY_LEAVES = 1.01  # a threshold above every confidence


def calibrate_exits(
    record: xr.Dataset,
    *,
    exit_rate: float | None = None,
    agreement: float | None = None,
    increase: float | None = None,
    delta: float = 0.05,
    candidates: ArrayLike | None = None,
) -> xr.Dataset:
    """Choose thresholds that reach a target on calibration data, and state what is guaranteed.

    Give one target. For an exit rate, the threshold is a quantile of the confidences. For agreement
    or increase, candidates are tested from the highest down, each at level `delta`, until one
    fails (fixed-sequence testing); the last one that passed is chosen.

    Use data that serve no other purpose. Samples must be independent, and from the same
    distribution as those to come, none of which may be longer than the longest one here. Tokens of
    one sample need not be independent. The guarantee holds for each row by itself, not for the
    best of many rows.

    Args:
        record: Made by `record_exits` from calibration data.
        exit_rate: The share of tokens that should leave early: the highest threshold that lets at
            least so many of the record's tokens leave.
        agreement: The smallest allowed share of tokens that are predicted as by the whole model.
            The bound holds for finite samples: binomial for one token per sample, otherwise
            Hoeffding-Bentkus over samples. A share of 1 is guaranteed only if no token leaves.
        increase: The largest allowed relative increase of perplexity: 0.01 allows 1 %. Differences
            of cross-entropy are unbounded, so this relies on Student's t over samples.
        delta: The allowed probability that the guarantee fails.
        candidates: Thresholds to test, fixed before you see the data; 0 to 1 in steps of 0.005 if
            not given. A threshold above 1, at which no token leaves, is always added.

    Returns:
        Dataset over `measure` and `exit` with `tau`, the threshold, and, on the record, its
        `exit_rate`, `agreement` and `increase`; `p_value` of the last test that passed (NaN if only
        the threshold at which no token leaves is allowed, or if the target is a rate);
        `rate_bound`, the largest error of the exit rate, which holds at all thresholds with
        probability 1 - delta. NaN if a measure is undefined. The attribute `guarantee` states in
        words what holds.

    Raises:
        ValueError: If there is no target or more than one, or a number does not fit.

    Examples:
        >>> import torch
        >>> from probes import record_exits
        >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        >>> data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(model, data, ["0", "1"])
        >>> thresholds = calibrate_exits(record, exit_rate=0.4)  # two of five
        >>> thresholds["exit_rate"].sel(measure="entropy", exit="0").item()
        0.4
    """
    check_record(record)
    target = check_target(exit_rate, agreement, increase, delta)
    grid = np.linspace(0, 1, 201) if candidates is None else candidates
    allowed = np.append(check_thresholds("candidates", grid), _NOBODY_LEAVES)
    descending_taus = np.unique(allowed)[::-1]

    tokens = _CalibrationTokens.from_record(record)
    bound = rate_bound(tokens.clusters.counts, delta)
    measures = [str(measure) for measure in record["measure"].values]
    sets_of_exits = list(exit_sets(record).values())
    results = {name: np.full((len(measures), len(sets_of_exits)), np.nan) for name in _LONG_NAMES}

    for m, e in np.ndindex(len(measures), len(sets_of_exits)):
        confidence = record["confidence"].values[m]
        open_exits = sets_of_exits[e]
        if np.isnan(confidence[open_exits]).all():  # the measure is undefined here
            continue

        # A rate needs no test: the bound holds for all thresholds at once.
        if target.name == "exit_rate":
            tau = _threshold_for_rate(np.nanmax(confidence[open_exits], axis=0), target.value)
            p_value = math.nan
        else:
            tau, p_value = _lowest_threshold_passed(
                tokens, confidence, open_exits, descending_taus, target
            )

        exit_layer = exit_layer_of_tokens(confidence, tau, open_exits)
        results["tau"][m, e] = tau
        results["exit_rate"][m, e] = float((exit_layer < len(confidence) - 1).mean())
        results["agreement"][m, e] = tokens.agreement(exit_layer)
        results["increase"][m, e] = tokens.increase(exit_layer)
        results["p_value"][m, e] = p_value
        results["rate_bound"][m, e] = bound

    return xr.Dataset(
        {
            name: (("measure", "exit"), values, {"long_name": _LONG_NAMES[name]})
            for name, values in results.items()
        },
        coords={"measure": record["measure"], "exit": exit_coordinate(record)},
        attrs=record.attrs
        | provenance(
            "probes.calibrate_exits",
            target=target.name,
            target_value=target.value,
            delta=delta,
            guarantee=target.guarantee(
                len(tokens.clusters.counts), one_token_per_sample=tokens.is_one_per_sample
            ),
        ),
    )


@dataclass(frozen=True)
class _CalibrationTokens:
    """All tokens of a record, and what they give when each leaves at some layer."""

    loss: np.ndarray  # (layer, token)
    prediction: np.ndarray  # (layer, token)
    clusters: Clusters

    @classmethod
    def from_record(cls, record: xr.Dataset) -> "_CalibrationTokens":
        loss = record["cross_entropy"].values
        prediction = record["prediction"].values
        return cls(loss, prediction, Clusters.from_record(record))

    @property
    def is_one_per_sample(self) -> bool:
        return bool((self.clusters.counts == 1).all())

    # What follows takes the layer at which each token leaves, `(token,)`.

    def disagrees(self, exit_layer: np.ndarray) -> np.ndarray:
        token = np.arange(len(exit_layer))
        differs: np.ndarray = self.prediction[exit_layer, token] != self.prediction[-1]
        return differs

    def added_loss(self, exit_layer: np.ndarray) -> np.ndarray:
        token = np.arange(len(exit_layer))
        added: np.ndarray = self.loss[exit_layer, token] - self.loss[-1]
        return added

    def agreement(self, exit_layer: np.ndarray) -> float:
        return float((~self.disagrees(exit_layer)).mean())

    def increase(self, exit_layer: np.ndarray) -> float:
        return math.expm1(float(self.added_loss(exit_layer).mean()))

    def p_value(self, exit_layer: np.ndarray, target: CalibrationTarget) -> float:
        """Return the p-value of the test that the target is missed when tokens leave so."""
        if target.name == "agreement":
            limit = 1 - target.value
            disagreement = self.disagrees(exit_layer).astype(float)
            risks = self.clusters.padded_means(disagreement, limit)
            return risk_p_value(risks, limit, binary=self.is_one_per_sample)

        limit = math.log1p(target.value)
        increases = self.clusters.padded_means(self.added_loss(exit_layer), limit)
        return mean_p_value(increases, limit)


def _lowest_threshold_passed(
    tokens: _CalibrationTokens,
    confidence: np.ndarray,
    open_exits: list[int],
    descending_taus: np.ndarray,
    target: CalibrationTarget,
) -> tuple[float, float]:
    """Return the lowest threshold that all tests down to it allow, and the p-value of its own.

    Each test may fail by chance; stopping at the first that does not pass keeps the chance of any
    wrong choice at delta, however many candidates there are (fixed-sequence testing).
    """
    chosen_tau = float(descending_taus[0])
    chosen_p_value = math.nan

    for tau in descending_taus[descending_taus <= 1]:
        exit_layer = exit_layer_of_tokens(confidence, tau, open_exits)
        p_value = tokens.p_value(exit_layer, target)
        if not p_value <= target.delta:  # NaN, of infinite losses, proves nothing
            break
        chosen_tau = float(tau)
        chosen_p_value = p_value

    return chosen_tau, chosen_p_value


def _threshold_for_rate(confidence: np.ndarray, rate: float) -> float:
    """Return the highest threshold that lets at least this share of tokens leave."""
    # The product may be 5.000000000001 where it should be 5.
    n_leaving = max(1, math.ceil(rate * len(confidence) - 1e-9))
    descending = np.sort(confidence)[::-1]
    return float(descending[n_leaving - 1])
