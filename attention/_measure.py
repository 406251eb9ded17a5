"""The statistics of rows of attention weights, and what they are called."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Label(NamedTuple):
    """What xarray writes on an axis."""

    long_name: str
    units: str = ""

    def attributes(self) -> dict[str, str]:
        """Return what there is of both, for a variable."""
        return {name: text for name, text in self._asdict().items() if text}


MEASURES = {
    "entropy": Label("entropy of the attention", "nat"),
    "normalised_entropy": Label("entropy of the attention over its largest value"),
    "gini": Label("Gini coefficient of the attention"),
    "peak": Label("largest attention weight"),
    "coverage": Label("share of keys near the peak"),
    "mass_coverage": Label("share of keys that hold most of the mass"),
    "participation": Label("participation ratio of the attention", "key"),
    "head_similarity": Label("mean cosine between the heads' attention"),
}


def measure(weights: Tensor, *, threshold: float, mass: float) -> dict[str, Tensor]:
    """Compute every statistic of rows of attention weights.

    Args:
        weights: `(..., head, query, key)`, adding up to one along `key`; NaN where there is no
            such key, which then is not counted.
        threshold: A key counts as covered from this share of the peak.
        mass: The share of the attention that `mass_coverage` gathers.

    Returns:
        `(..., head, query)` each, `head_similarity` `(..., query)`; NaN where no key is left.
    """
    is_visible = ~weights.isnan()
    share = torch.where(is_visible, weights, 0)
    n_keys = is_visible.sum(-1)
    return measure_sorted(share, sort_rows(share), n_keys, threshold=threshold, mass=mass)


def measure_sorted(
    share: Tensor, ordered: Tensor, n_keys: Tensor, *, threshold: float, mass: float
) -> dict[str, Tensor]:
    """`measure` weights that are zero, not NaN, where there is no key, and already sorted.

    Args:
        share: The weights, `(..., head, query, key)`.
        ordered: `sort_rows(share)`.
        n_keys: How many keys there are in each row, `(..., head, query)`.
        threshold: A key counts as covered from this share of the peak.
        mass: The share of the attention that `mass_coverage` gathers.
    """
    size = share.size(-1)
    n_keys = torch.where(n_keys > 0, n_keys.to(share.dtype), torch.nan)
    one_or_nan = n_keys / n_keys  # NaN in a row that sees no key
    peak = ordered[..., -1]

    # Half the time of `torch.special.entr`; a weight of zero adds zero all the same.
    # (Clamped to a normal number: others are zero to a processor told to flush them.)
    entropy = -(share * share.clamp_min(torch.finfo(share.dtype).tiny).log()).sum(-1)
    squares = share.square().sum(-1)

    # Gini of sorted weights: ((K + 1) sum p - 2 sum (K + 1 - i) p_i) / K. Absent keys come first,
    # with weight zero, so they add nothing, whatever their rank.
    ranked_sum = ordered @ torch.arange(size, 0, -1, device=share.device, dtype=share.dtype)
    gini = ((n_keys + 1) * share.sum(-1) - 2 * ranked_sum) / n_keys

    # How many keys are near the peak, and how many of the largest gather the mass. The margin
    # keeps rounding from asking for one key more.
    n_covered = size - count_below(ordered, threshold * peak)
    enough = torch.full_like(peak, mass * (1 - 1e-6))
    n_gathered = 1 + count_below(ordered.flip(-1).cumsum(-1), enough)

    directions = share / squares.sqrt().clamp_min(1e-30)[..., None]
    return {
        "entropy": entropy * one_or_nan,
        "normalised_entropy": torch.where(n_keys > 1, entropy / n_keys.log(), torch.nan),
        "gini": gini,
        "peak": peak * one_or_nan,
        "coverage": n_covered / n_keys,
        "mass_coverage": torch.minimum(n_gathered, n_keys) / n_keys,
        "participation": one_or_nan / squares,
        "head_similarity": _head_similarity(directions, one_or_nan.nansum(-2)),
    }


def sort_rows(share: Tensor) -> Tensor:
    """Sort every row, the smallest weight first."""
    share = share.contiguous()  # `searchsorted` would warn
    if share.device.type != "cpu":
        return share.sort(-1).values
    # Numpy sorts short rows with vector instructions, some fifty times faster than torch.
    return torch.from_numpy(np.sort(share.numpy(), -1))


def count_below(ordered: Tensor, bound: Tensor) -> Tensor:
    """Count the entries of each sorted row below its bound; faster than to compare them all."""
    return torch.searchsorted(ordered, bound[..., None]).squeeze(-1)


def _head_similarity(directions: Tensor, n_heads: Tensor) -> Tensor:
    # All pairs at once: the squared length of a sum of unit vectors holds every cosine twice.
    cosines = directions.sum(-3).square().sum(-1) - n_heads
    return torch.where(n_heads > 1, cosines / (n_heads * (n_heads - 1)), torch.nan)
