"""Which token leaves where, what that costs, and how sure its mean is.

Layers are numbered along `layer` of a record; the last is the whole model, where every token leaves
that has not left before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr

from probes._exit_analysis.token_statistics import MEASURES_WITHOUT_HEAD

ANY = "any"  # the name for all early exits open at once

# From "all leave at the first exit" to "none leaves early"; closer where confidences are dense.
DEFAULT_THRESHOLDS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.01)


@dataclass(frozen=True)
class Clusters:
    """Tokens by sample: those of one text are not independent."""

    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def from_record(cls, record: xr.Dataset) -> "Clusters":
        """Find the samples of a record, whose tokens are in order."""
        _, starts, counts = np.unique(record["sample"], return_index=True, return_counts=True)
        return cls(starts, counts)

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """Return the mean over tokens, and its standard error over samples.

        The error is that of a ratio of two sums over n independent samples, NaN for a single one:
        sqrt(n / (n - 1) * sum((sum of a sample - mean * its tokens)^2)) / all tokens.
        """
        sums = np.add.reduceat(values, self.starts)
        n_tokens = self.counts.sum()
        n_samples = len(sums)
        mean = sums.sum() / n_tokens

        residuals = sums - mean * self.counts
        variance = np.nan
        if n_samples > 1:
            variance = np.square(residuals).sum() * n_samples / (n_samples - 1)
        return float(mean), float(np.sqrt(variance) / n_tokens)

    def padded_means(self, values: np.ndarray, limit: float) -> np.ndarray:
        """Return one number per sample, the mean of which is below `limit` if that of tokens is.

        It is the mean of each sample, made as long as the longest by tokens right at the limit.
        """
        sums = np.add.reduceat(values, self.starts)
        longest = self.counts.max()
        means: np.ndarray = (sums + limit * (longest - self.counts)) / longest
        return means


def exit_sets(record: xr.Dataset) -> dict[str, list[int]]:
    """Name the sets of exits that are open together: each early one alone, then all of them."""
    early_layers = list(range(record.sizes["layer"] - 1))
    names = [str(name) for name in record["layer"].values[:-1]]
    alone = {name: [layer] for name, layer in zip(names, early_layers, strict=True)}
    return {**alone, ANY: early_layers}


def exit_coordinate(record: xr.Dataset) -> tuple[str, np.ndarray, dict[str, str]]:
    """Return the coordinate `exit` of a Dataset: the names of `exit_sets`."""
    names = np.array(list(exit_sets(record)), dtype=str)
    return "exit", names, {"long_name": "exit opened, or any of them"}


def exit_layer_of_tokens(
    confidence: np.ndarray, threshold: float, open_exits: Sequence[int]
) -> np.ndarray:
    """Return the layer at which each token leaves, `(token,)`, from confidences `(layer, token)`.

    It is the first open exit whose confidence is at least the threshold, else the last layer. A
    confidence of NaN lets nobody leave.
    """
    last_layer = len(confidence) - 1
    exit_layer = np.full(confidence.shape[1], last_layer)

    # Backwards, so that an earlier exit has the last word.
    for layer in sorted(open_exits, reverse=True):
        exit_layer[confidence[layer] >= threshold] = layer
    return exit_layer


def relative_costs(record: xr.Dataset, measure: str, open_exits: Sequence[int]) -> np.ndarray:
    """Return what a token costs that leaves at each layer, the whole model being 1.

    A token pays for the layers up to where it leaves, and for every head that was asked on the way:
    none but its own for a measure that needs no logits, all listed ones for patience.
    """
    layer_flops = record["flops"].values
    head_flops = record["head_flops"].values
    last_layer = len(layer_flops) - 1
    asked_layers = {*open_exits, last_layer}
    if measure == "patience":
        asked_layers = set(range(last_layer + 1))

    costs = np.empty(len(layer_flops))
    for layer in range(len(layer_flops)):
        heads_run = [head for head in sorted(asked_layers) if head <= layer]
        if measure in MEASURES_WITHOUT_HEAD:
            heads_run = [layer]
        costs[layer] = layer_flops[layer] + sum(head_flops[head] for head in heads_run)

    # A model without any product of matrices has no operations that are counted.
    full_cost = layer_flops[last_layer] + head_flops[last_layer]
    return costs / full_cost if full_cost > 0 else np.full(len(costs), np.nan)


def check_record(record: xr.Dataset) -> None:
    """Refuse what is not a record of exits.

    Raises:
        TypeError: If it is none.
    """
    variables = {"cross_entropy", "prediction", "confidence", "flops", "head_flops"}
    if not isinstance(record, xr.Dataset) or not variables <= set(record.data_vars):
        raise TypeError("`record`: expected a Dataset made by probes.record_exits")


def check_thresholds(argument: str, values: object, *, at_most: int | None = None) -> np.ndarray:
    """Return one or more numbers as an array.

    Args:
        argument: The name of the user's argument, for the error.
        values: What came.
        at_most: How many are allowed; None allows any number of them.

    Raises:
        ValueError: If there is none, or too many, or one is NaN.
    """
    try:
        thresholds = np.atleast_1d(np.asarray(values, dtype=float))
    except (TypeError, ValueError):  # no numbers at all
        thresholds = np.array([np.nan])

    is_count_allowed = 0 < thresholds.size <= (at_most or np.inf)
    if thresholds.ndim != 1 or not is_count_allowed or np.isnan(thresholds).any():
        expected = "a number, not NaN" if at_most == 1 else "one or more numbers, none NaN"
        raise ValueError(f"`{argument}`: expected {expected}, got {values!r}")
    return thresholds
