"""Which token leaves where, what that costs, and how sure its mean is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from probes._exit_analysis.token_statistics import HEADLESS

ANY = "any"  # the exit at which a token leaves is the first that is sure enough


@dataclass(frozen=True)
class Clusters:
    """Tokens by sample: those of one text are not independent."""

    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, record: xr.Dataset) -> "Clusters":
        """The samples of a record, whose tokens are in order."""
        _, starts, counts = np.unique(record["sample"], return_index=True, return_counts=True)
        return cls(starts, counts)

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """The mean over tokens, and its standard error over samples (NaN for a single one)."""
        sums, total = np.add.reduceat(values, self.starts), self.counts.sum()
        mean = sums.sum() / total
        n = len(sums)
        spread = np.square(sums - mean * self.counts).sum() * n / (n - 1) if n > 1 else np.nan
        return float(mean), float(np.sqrt(spread) / total)

    def padded_means(self, values: np.ndarray, limit: float) -> np.ndarray:
        """One number per sample, the mean of which is below `limit` where that over tokens is.

        It is the mean of each sample, made as long as the longest by tokens right at the limit.
        """
        sums, longest = np.add.reduceat(values, self.starts), self.counts.max()
        found: np.ndarray = (sums + limit * (longest - self.counts)) / longest
        return found


def exits_of(record: xr.Dataset) -> dict[str, list[int]]:
    """Sets of exits that are open together: each early one alone, then all of them."""
    early = list(range(record.sizes["layer"] - 1))
    names = [str(name) for name in record["layer"].values[:-1]]
    return {**{name: [i] for name, i in zip(names, early, strict=True)}, ANY: early}


def leave(confidence: np.ndarray, tau: float, opened: Sequence[int]) -> np.ndarray:
    """The layer at which each token leaves, `(token,)`, from the confidence `(layer, token)`.

    It is the first opened one whose confidence is at least tau, else the last layer.
    """
    left = np.full(confidence.shape[1], len(confidence) - 1)
    for i in sorted(opened, reverse=True):
        left[confidence[i] >= tau] = i
    return left


def relative_costs(record: xr.Dataset, measure: str, opened: Sequence[int]) -> np.ndarray:
    """What a token costs that leaves at each layer, the whole model being 1, heads included.

    A token pays for the layers up to where it leaves, and for every head that was asked on the way:
    none but its own for a measure that needs no logits, all listed ones for patience.
    """
    body, head = record["flops"].values, record["head_flops"].values
    last = len(body) - 1
    asked = {*opened, last} if measure != "patience" else set(range(last + 1))
    costs = np.empty(len(body))
    for i in range(len(body)):
        tried = [i] if measure in HEADLESS else [j for j in sorted(asked) if j <= i]
        costs[i] = body[i] + sum(head[j] for j in tried)
    whole = body[last] + head[last]
    return costs / whole if whole > 0 else np.full(len(body), np.nan)


def check_record(record: xr.Dataset) -> None:
    """Refuse what is not a record of exits."""
    wanted = {"cross_entropy", "prediction", "confidence", "flops", "head_flops"}
    if not isinstance(record, xr.Dataset) or not wanted <= set(record.data_vars):
        raise TypeError("`record`: expected a Dataset made by probes.record_exits")


def check_thresholds(name: str, values: object, *, most: int | None = None) -> np.ndarray:
    """One or more numbers, none NaN."""
    try:
        found = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError):  # no numbers at all
        found = np.array([np.nan])
    if found.ndim != 1 or not 0 < found.size <= (most or np.inf) or np.isnan(found).any():
        wanted = "a number, not NaN" if most == 1 else "one or more numbers, none NaN"
        raise ValueError(f"`{name}`: expected {wanted}, got {values!r}")
    return found
