import math

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from probes._exit_analysis.bounds import mean_p_value, rate_bound, risk_p_value
from probes._exit_analysis.leaving import Clusters, check_record, check_thresholds, exits_of, leave
from resonance_toolkit import provenance

_NAMES = {
    "tau": "threshold",
    "exit_rate": "share of tokens that leave early",
    "agreement": "share of tokens predicted as by the whole model",
    "increase": "relative increase of perplexity",
    "p_value": "of the test that this threshold passed",
    "rate_bound": "largest distance of the exit rate from its expectation",
}


def calibrate_exits(
    record: xr.Dataset,
    *,
    exit_rate: float | None = None,
    agreement: float | None = None,
    increase: float | None = None,
    delta: float = 0.05,
    candidates: ArrayLike | None = None,
) -> xr.Dataset:
    """Choose thresholds that reach a target, on data kept for this alone, and say what is proved.

    Give one target. For an exit rate the threshold is a quantile of the confidences. For agreement
    or increase, candidates are tested from the highest down, each at level `delta`, until one
    fails (fixed-sequence testing); the last that passed is chosen. Samples must be independent and
    like those to come, none of which may be longer than the longest here; tokens of one sample need
    not be independent. The guarantee is for each row by itself, not for the best of many.

    Args:
        record: Made by `record_exits` from calibration data.
        exit_rate: The share of tokens that should leave early: the highest threshold that lets at
            least so many of the record's tokens leave.
        agreement: The least share of tokens to be predicted as by the whole model. The bound is
            finite-sample: binomial for one token per sample, else Hoeffding-Bentkus over samples.
            A share of 1 can be proved by nobody leaving only.
        increase: The largest relative increase of perplexity: 0.01 allows 1 %. Differences of
            cross-entropy have no bound, so this rests on Student's t over samples.
        delta: The chance allowed that the guarantee fails.
        candidates: Thresholds to test, fixed before seeing the data; 0 to 1 in steps of 0.005 if
            not given. One above 1, where nobody leaves, is always among them.

    Returns:
        Dataset over `measure` and `exit` with `tau`, the threshold, and, on the record, its
        `exit_rate`, `agreement` and `increase`; `p_value` of the last test passed (NaN where the
        only threshold allowed lets nobody leave, or the target is a rate); `rate_bound`, which with
        chance 1 - delta holds for the exit rate at all thresholds. NaN where a measure is
        undefined. The attribute `guarantee` states what holds.

    Raises:
        ValueError: If not one target is given, or a number does not fit.
    """
    check_record(record)
    target, value = _target(exit_rate, agreement, increase)
    if not 0 < delta < 1:
        raise ValueError(f"`delta`: expected a number between 0 and 1, got {delta!r}")
    grid = np.linspace(0, 1, 201) if candidates is None else candidates
    taus = np.unique(np.append(check_thresholds("candidates", grid), 1.01))[::-1]
    exits, clusters = exits_of(record), Clusters.of(record)
    binary = bool((clusters.counts == 1).all())
    bound = rate_bound(clusters.counts, delta)
    measures = [str(m) for m in record["measure"].values]
    found = {name: np.full((len(measures), len(exits)), np.nan) for name in _NAMES}
    for m, e in np.ndindex(len(measures), len(exits)):
        confidence, opened = record["confidence"].values[m], list(exits.values())[e]
        if np.isnan(confidence[opened]).all():
            continue
        if target == "exit_rate":
            tau, p = _quantile(np.nanmax(confidence[opened], axis=0), value), math.nan
        else:
            tau, p = _last_passed(record, confidence, opened, taus, clusters, target, value, delta)
        left = leave(confidence, tau, opened)
        row = (tau, float((left < len(confidence) - 1).mean()), *_at(record, left), p, bound)
        for name, number in zip(_NAMES, row, strict=True):
            found[name][m, e] = number
    return xr.Dataset(
        {k: (("measure", "exit"), v, {"long_name": _NAMES[k]}) for k, v in found.items()},
        coords={
            "measure": record["measure"],
            "exit": ("exit", list(exits), {"long_name": "exit opened, or any of them"}),
        },
        attrs=record.attrs
        | provenance(
            "probes.calibrate_exits",
            target=target,
            target_value=value,
            delta=delta,
            guarantee=_guarantee(target, value, delta, len(clusters.counts), binary),
        ),
    )


def _last_passed(
    record: xr.Dataset,
    confidence: np.ndarray,
    opened: list[int],
    taus: np.ndarray,
    clusters: Clusters,
    target: str,
    value: float,
    delta: float,
) -> tuple[float, float]:
    """The lowest threshold that all tests down to it allow, and the p-value of its own."""
    chosen, passed = float(taus[0]), math.nan
    binary = bool((clusters.counts == 1).all())
    loss, prediction = record["cross_entropy"].values, record["prediction"].values
    token = np.arange(loss.shape[1])
    for tau in taus[taus <= 1]:
        left = leave(confidence, tau, opened)
        if target == "agreement":
            differs = (prediction[left, token] != prediction[-1]).astype(float)
            limit = 1 - value
            p = risk_p_value(clusters.padded_means(differs, limit), limit, binary=binary)
        else:
            limit, added = math.log1p(value), loss[left, token] - loss[-1]
            p = mean_p_value(clusters.padded_means(added, limit), limit)
        if not p <= delta:  # NaN, of infinite losses, proves nothing
            break
        chosen, passed = float(tau), p
    return chosen, passed


def _quantile(confidence: np.ndarray, rate: float) -> float:
    """The highest threshold that lets at least this share leave."""
    wanted = max(1, math.ceil(rate * len(confidence) - 1e-9))
    return float(np.sort(confidence)[::-1][wanted - 1])


def _at(record: xr.Dataset, left: np.ndarray) -> tuple[float, float]:
    token = np.arange(len(left))
    loss, prediction = record["cross_entropy"].values, record["prediction"].values
    agreement = float((prediction[left, token] == prediction[-1]).mean())
    return agreement, math.expm1(float((loss[left, token] - loss[-1]).mean()))


def _target(
    exit_rate: float | None, agreement: float | None, increase: float | None
) -> tuple[str, float]:
    targets = {"exit_rate": exit_rate, "agreement": agreement, "increase": increase}
    given = {name: value for name, value in targets.items() if value is not None}
    if len(given) != 1:
        raise ValueError(
            f"expected one target of `exit_rate`, `agreement` and `increase`, got {len(given)}"
        )
    ((name, value),) = given.items()
    high = math.inf if name == "increase" else 1.0
    low_fits = value >= 0 if name == "increase" else value > 0
    if not (low_fits and value <= high and math.isfinite(value)):
        wanted = "at least 0" if name == "increase" else "above 0, at most 1"
        raise ValueError(f"`{name}`: expected a finite number, {wanted}, got {value!r}")
    return name, float(value)


def _guarantee(target: str, value: float, delta: float, n: int, binary: bool) -> str:
    chance = f"with probability at least {1 - delta:g} over {n} independent calibration samples"
    match target:
        case "exit_rate":
            how = (
                "Dvoretzky-Kiefer-Wolfowitz" if binary else "Dvoretzky-Kiefer-Wolfowitz, McDiarmid"
            )
            return f"{chance}, the exit rate to expect is within rate_bound of exit_rate ({how})"
        case "agreement":
            how = "exact binomial" if binary else "Hoeffding-Bentkus"
            return (
                f"{chance}, the agreement to expect is at least {value:g} (fixed-sequence testing, "
                f"{how}; finite-sample)"
            )
    return (
        f"{chance}, the perplexity to expect is at most {1 + value:g} times the whole model's "
        "(fixed-sequence testing, Student's t; for many samples, not a finite-sample bound)"
    )
