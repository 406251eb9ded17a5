import numpy as np
import xarray as xr
from scipy.stats import rankdata

from probes._exit_analysis.leaving import Clusters, check_record
from resonance_toolkit import provenance

EVENTS = ("correct", "agrees", "as good")


def exit_reliability(record: xr.Dataset, *, bins: int = 15) -> xr.Dataset:
    """Whether confidence means what it says, and whether it tells tokens apart.

    Three events are asked for at every layer: the prediction is `correct`; it `agrees` with the
    whole model's; its cross-entropy is `as good` as the whole model's (at most as large).

    Args:
        record: Made by `record_exits`.
        bins: How many bins of equal width cover confidences from 0 to 1.

    Returns:
        Dataset over `event`, `measure` and `layer` with `ece`, the expected calibration error: the
        mean over tokens of |frequency - mean confidence| of their bin (only `max softmax` claims to
        be a probability, that of `correct`; for others it is a distance all the same); `auroc`, the
        chance that a token with the event has more confidence than one without (ties count half),
        NaN where all have it or none; `auroc_se`, over samples. The curve over `bin`: `frequency`
        of the event with `frequency_se` (over samples; NaN for a single one), `mean_confidence` and
        `share` of tokens; NaN where a bin is empty, or the measure undefined.

    Raises:
        ValueError: If `bins` is below 1.
    """
    check_record(record)
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"`bins`: expected a whole number of at least 1, got {bins!r}")
    clusters, events = Clusters.of(record), _events(record)
    confidence = record["confidence"].values
    n_measures, n_layers, _ = confidence.shape
    shape = (len(EVENTS), n_measures, n_layers)
    ece, auroc, auroc_se = (np.full(shape, np.nan) for _ in range(3))
    frequency, frequency_se = (np.full((*shape, bins), np.nan) for _ in range(2))
    mean, share = (np.full((*shape[1:], bins), np.nan) for _ in range(2))
    for m, layer in np.ndindex(n_measures, n_layers):
        sure = confidence[m, layer]
        if np.isnan(sure).any():
            continue
        which = np.minimum((sure * bins).astype(int), bins - 1)
        count = np.bincount(which, minlength=bins)
        filled = count > 0
        share[m, layer] = count / len(sure)
        mean[m, layer, filled] = np.bincount(which, sure, bins)[filled] / count[filled]
        ranks = rankdata(sure)
        for e, happened in enumerate(events[:, layer]):
            hits = np.bincount(which, happened, bins)
            frequency[e, m, layer, filled] = hits[filled] / count[filled]
            gaps = np.abs(frequency[e, m, layer] - mean[m, layer])
            ece[e, m, layer] = np.nansum(gaps * share[m, layer])
            frequency_se[e, m, layer] = _bin_errors(
                which, happened, frequency[e, m, layer], clusters
            )
            auroc[e, m, layer], auroc_se[e, m, layer] = _auroc(sure, ranks, happened > 0, clusters)
    return _dataset(record, bins, ece, auroc, auroc_se, frequency, frequency_se, mean, share)


def _events(record: xr.Dataset) -> np.ndarray:
    """What happened, `(event, layer, token)`, as 0 and 1."""
    loss, prediction = record["cross_entropy"].values, record["prediction"].values
    return np.array(
        [prediction == record["target"].values, prediction == prediction[-1], loss <= loss[-1]]
    ).astype(float)


def _auroc(
    sure: np.ndarray, ranks: np.ndarray, happened: np.ndarray, clusters: Clusters
) -> tuple[float, float]:
    """Area under the curve by midranks, and its error from placements summed per sample."""
    n = int(happened.sum())
    others = len(happened) - n
    if not n or not others:
        return np.nan, np.nan
    placed = np.empty(len(sure))
    # The share of the other kind that lies below (with the event) or above (without it).
    placed[happened] = (ranks[happened] - rankdata(sure[happened])) / others
    placed[~happened] = 1 - (ranks[~happened] - rankdata(sure[~happened])) / n
    area = float(placed[happened].mean())
    pulls = np.where(happened, (placed - area) / n, (placed - area) / others)
    sums = np.add.reduceat(pulls, clusters.starts)
    k = len(sums)
    return area, float(np.sqrt(np.square(sums).sum() * k / (k - 1))) if k > 1 else np.nan


def _bin_errors(
    which: np.ndarray, happened: np.ndarray, frequency: np.ndarray, clusters: Clusters
) -> np.ndarray:
    """Standard error over samples of the frequency in each bin, NaN where one sample is all."""
    k, bins = len(clusters.counts), len(frequency)
    if k < 2:
        return np.full(bins, np.nan)
    sample = np.repeat(np.arange(k), clusters.counts)
    cell = sample * bins + which
    residual = np.bincount(cell, happened - frequency[which], k * bins).reshape(k, bins)
    count = np.bincount(which, minlength=bins)
    several = (np.bincount(cell, minlength=k * bins).reshape(k, bins) > 0).sum(0) > 1
    errors = np.full(bins, np.nan)
    errors[several] = np.sqrt(np.square(residual).sum(0) * k / (k - 1))[several] / count[several]
    return errors


def _dataset(record: xr.Dataset, bins: int, *found: np.ndarray) -> xr.Dataset:
    ece, auroc, auroc_se, frequency, frequency_se, mean, share = found
    dims, edges = ("event", "measure", "layer"), np.linspace(0, 1, bins + 1)
    binned = (*dims, "bin")
    return xr.Dataset(
        {
            "ece": (dims, ece, {"long_name": "expected calibration error"}),
            "auroc": (dims, auroc, {"long_name": "area under the ROC curve"}),
            "auroc_se": (dims, auroc_se, {"long_name": "its standard error over samples"}),
            "frequency": (binned, frequency, {"long_name": "frequency of the event"}),
            "frequency_se": (binned, frequency_se, {"long_name": "its standard error"}),
            "mean_confidence": (binned[1:], mean, {"long_name": "mean confidence"}),
            "share": (binned[1:], share, {"long_name": "share of tokens"}),
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
