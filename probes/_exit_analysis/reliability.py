from dataclasses import dataclass

import numpy as np
import xarray as xr

from probes._exit_analysis.events import EVENTS
from probes._exit_analysis.leaving import Clusters, check_record
from resonance_toolkit import check_whole, provenance

_BY_EVENT = ("event", "measure", "layer")
_BY_BIN = ("measure", "layer", "bin")
_VARIABLES = {
    "ece": (_BY_EVENT, "expected calibration error"),
    "auroc": (_BY_EVENT, "area under the ROC curve"),
    "auroc_se": (_BY_EVENT, "its standard error over samples"),
    "frequency": ((*_BY_EVENT, "bin"), "frequency of the event"),
    "frequency_se": ((*_BY_EVENT, "bin"), "its standard error"),
    "mean_confidence": (_BY_BIN, "mean confidence"),
    "share": (_BY_BIN, "share of tokens"),
}


def exit_reliability(record: xr.Dataset, *, bins: int = 15) -> xr.Dataset:
    """Measure whether confidence is calibrated, and how well it separates tokens.

    At every layer, the confidence is compared with three events: the prediction is `correct`; it
    `agrees` with the whole model's prediction; its cross-entropy is `as good` as the whole model's
    (at most as large).

    Args:
        record: Made by `record_exits`.
        bins: How many bins of equal width cover confidences from 0 to 1.

    Returns:
        Dataset over `event`, `measure` and `layer` with `ece`, the expected calibration error: the
        mean over tokens of |frequency - mean confidence| of their bin (only `max softmax` is meant
        as a probability, that of `correct`; for the other measures, `ece` is just a distance);
        `auroc`, the probability that a token with the event has more confidence than one without
        (ties count half), NaN if all tokens have the event or none; and `auroc_se`, over samples.
        The curve over `bin` consists of the `frequency` of the event, `frequency_se` (over samples;
        NaN for a single sample), `mean_confidence`, and the `share` of tokens. These are NaN if a
        bin is empty or the measure is undefined.

    Raises:
        ValueError: If `bins` is below 1.

    Examples:
        >>> import torch
        >>> from probes import record_exits
        >>> model = torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Linear(4, 3))
        >>> data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(model, data, ["0", "1"])
        >>> reliability = exit_reliability(record, bins=1)  # all tokens in one bin
        >>> reliability["share"].sel(measure="margin").values.ravel()
        array([1., 1.])
        >>> reliability["frequency"].sel(event="agrees", measure="margin", layer="1").values
        array([1.])
    """
    check_record(record)
    bins = check_whole("bins", bins)

    clusters = Clusters.from_record(record)
    events = _event_indicators(record)
    confidence = record["confidence"].values
    n_measures, n_layers, _ = confidence.shape
    sizes = {"event": len(EVENTS), "measure": n_measures, "layer": n_layers, "bin": bins}
    results = {
        name: np.full([sizes[dim] for dim in dims], np.nan)
        for name, (dims, _) in _VARIABLES.items()
    }

    for m, layer in np.ndindex(n_measures, n_layers):
        # Undefined at this layer: its curves and numbers stay NaN.
        if np.isnan(confidence[m, layer]).any():
            continue

        binned = _BinnedTokens.from_confidence(confidence[m, layer], bins)
        results["share"][m, layer] = binned.share
        results["mean_confidence"][m, layer] = binned.mean(binned.confidence)

        for e, happened in enumerate(events[:, layer]):
            frequency = binned.mean(happened)
            gaps = np.abs(frequency - results["mean_confidence"][m, layer])
            area, area_se = _area_under_roc(binned, happened > 0, clusters)

            results["frequency"][e, m, layer] = frequency
            results["frequency_se"][e, m, layer] = _bin_errors(
                binned, happened, frequency, clusters
            )
            results["ece"][e, m, layer] = np.nansum(gaps * binned.share)
            results["auroc"][e, m, layer] = area
            results["auroc_se"][e, m, layer] = area_se

    edges = np.linspace(0, 1, bins + 1)
    return xr.Dataset(
        {
            name: (dims, results[name], {"long_name": text})
            for name, (dims, text) in _VARIABLES.items()
        },
        coords={
            "event": ("event", list(EVENTS), {"long_name": "what confidence should tell"}),
            "measure": record["measure"],
            "layer": record["layer"],
            "depth": record["depth"],
            "bin": ("bin", (edges[1:] + edges[:-1]) / 2, {"long_name": "middle of the bin"}),
        },
        attrs=record.attrs
        | provenance("probes.exit_reliability", bins=bins, n_tokens=record.sizes["token"]),
    )


def _event_indicators(record: xr.Dataset) -> np.ndarray:
    """Return what happened, `(event, layer, token)`, as 0 and 1."""
    loss = record["cross_entropy"].values
    prediction = record["prediction"].values
    target = record["target"].values
    happened = [prediction == target, prediction == prediction[-1], loss <= loss[-1]]
    return np.array(happened).astype(float)


@dataclass(frozen=True)
class _BinnedTokens:
    """The confidences `(token,)` of one measure at one layer, their ranks, and their bins."""

    confidence: np.ndarray
    ranks: np.ndarray  # from 1 up; equal confidences share the middle of theirs
    bin_of_token: np.ndarray
    counts: np.ndarray  # (bin,)

    @classmethod
    def from_confidence(cls, confidence: np.ndarray, bins: int) -> "_BinnedTokens":
        # Here, since `import probes` should not wait for all of scipy.stats.
        from scipy.stats import rankdata

        # A confidence of 1 belongs to the last bin.
        bin_of_token = np.minimum((confidence * bins).astype(int), bins - 1)
        counts = np.bincount(bin_of_token, minlength=bins)
        return cls(confidence, rankdata(confidence), bin_of_token, counts)

    @property
    def share(self) -> np.ndarray:
        """The share of tokens in each bin."""
        share: np.ndarray = self.counts / len(self.confidence)
        return share

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the tokens of each bin, NaN where it is empty."""
        filled = self.counts > 0
        means = np.full(len(self.counts), np.nan)
        sums = np.bincount(self.bin_of_token, values, len(self.counts))
        means[filled] = sums[filled] / self.counts[filled]
        return means


def _area_under_roc(
    tokens: _BinnedTokens, happened: np.ndarray, clusters: Clusters
) -> tuple[float, float]:
    """Return the area under the ROC curve by midranks, and its standard error over samples.

    A token's placement is the share of the other kind that lies below it (with the event) or above
    it (without). The area is the mean placement of tokens with the event; its error comes from the
    placements of both kinds (DeLong et al., 1988), summed per sample (Obuchowski, 1997).
    """
    n_with = int(happened.sum())
    n_without = len(happened) - n_with
    if not n_with or not n_without:
        return np.nan, np.nan

    from scipy.stats import rankdata

    confidence = tokens.confidence
    ranks = tokens.ranks
    placements = np.empty(len(confidence))
    placements[happened] = (ranks[happened] - rankdata(confidence[happened])) / n_without
    placements[~happened] = 1 - (ranks[~happened] - rankdata(confidence[~happened])) / n_with
    area = float(placements[happened].mean())

    deviations = placements - area
    influence = np.where(happened, deviations / n_with, deviations / n_without)
    sums = np.add.reduceat(influence, clusters.starts)
    n_samples = len(sums)
    if n_samples < 2:
        return area, np.nan
    return area, float(np.sqrt(np.square(sums).sum() * n_samples / (n_samples - 1)))


def _bin_errors(
    tokens: _BinnedTokens, happened: np.ndarray, frequency: np.ndarray, clusters: Clusters
) -> np.ndarray:
    """Return the standard error over samples of each bin's frequency, NaN where one is all."""
    n_samples = len(clusters.counts)
    bins = len(frequency)
    errors = np.full(bins, np.nan)
    if n_samples < 2:
        return errors

    # Every pair of a sample and a bin is a cell; tokens are summed up by cell.
    sample = np.repeat(np.arange(n_samples), clusters.counts)
    cell = sample * bins + tokens.bin_of_token
    n_cells = n_samples * bins
    residuals = happened - frequency[tokens.bin_of_token]
    residual_sums = np.bincount(cell, residuals, n_cells).reshape(n_samples, bins)
    cell_counts = np.bincount(cell, minlength=n_cells).reshape(n_samples, bins)

    has_several = (cell_counts > 0).sum(0) > 1
    sums = np.sqrt(np.square(residual_sums).sum(0) * n_samples / (n_samples - 1))
    errors[has_several] = sums[has_several] / tokens.counts[has_several]
    return errors
