from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Meaning(NamedTuple):
    """What xarray writes on an axis."""

    long_name: str
    units: str = ""


MEASURES = {
    "entropy": Meaning("entropy of the attention", "nat"),
    "normalised_entropy": Meaning("entropy of the attention over its largest value"),
    "gini": Meaning("Gini coefficient of the attention"),
    "peak": Meaning("largest attention weight"),
    "coverage": Meaning("share of keys near the peak"),
    "mass_coverage": Meaning("share of keys that hold most of the mass"),
    "participation": Meaning("participation ratio of the attention", "key"),
    "head_similarity": Meaning("mean cosine between the heads' attention"),
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
    there = ~weights.isnan()
    share = torch.where(there, weights, 0)
    return measure_seen(share, rising(share), there.sum(-1), threshold=threshold, mass=mass)


def measure_seen(
    share: Tensor, ordered: Tensor, n_keys: Tensor, *, threshold: float, mass: float
) -> dict[str, Tensor]:
    """`measure` weights that are zero, not NaN, where there is no key.

    Args:
        share: As the weights of `measure`.
        ordered: `rising(share)`.
        n_keys: How many keys there are in each row.
        threshold: As for `measure`.
        mass: As for `measure`.
    """
    size = share.size(-1)
    n_keys = torch.where(n_keys > 0, n_keys.to(share.dtype), torch.nan)
    known = n_keys / n_keys
    peak = ordered[..., -1]
    # Half the time of `torch.special.entr`; a weight of zero adds zero all the same.
    # (Clamped to a normal number: others are zero to a processor told to flush them.)
    entropy = -(share * share.clamp_min(torch.finfo(share.dtype).tiny).log()).sum(-1)
    squares = share.square().sum(-1)
    # Absent keys come last, with weight zero, so they add nothing, whatever their place.
    places = ordered @ torch.arange(size, 0, -1, device=share.device, dtype=share.dtype)
    covered = size - count_below(ordered, threshold * peak)
    # The margin keeps rounding from asking for one key more.
    enough = torch.full_like(peak, mass * (1 - 1e-6))
    gathered = 1 + count_below(ordered.flip(-1).cumsum(-1), enough)
    directions = share / squares.sqrt().clamp_min(1e-30)[..., None]
    return {
        "entropy": entropy * known,
        "normalised_entropy": torch.where(n_keys > 1, entropy / n_keys.log(), torch.nan),
        "gini": ((n_keys + 1) * share.sum(-1) - 2 * places) / n_keys,
        "peak": peak * known,
        "coverage": covered / n_keys,
        "mass_coverage": torch.minimum(gathered, n_keys) / n_keys,
        "participation": known / squares,
        "head_similarity": _head_similarity(directions, known.nansum(-2)),
    }


def rising(share: Tensor) -> Tensor:
    """Every row in order, the smallest weight first."""
    share = share.contiguous()  # `searchsorted` would warn
    if share.device.type != "cpu":
        return share.sort(-1).values
    # Numpy sorts short rows with vector instructions, some fifty times faster than torch.
    return torch.from_numpy(np.sort(share.numpy(), -1))


def count_below(ordered: Tensor, bound: Tensor) -> Tensor:
    """How many entries of each rising row lie below its bound; faster than to compare them all."""
    return torch.searchsorted(ordered, bound[..., None]).squeeze(-1)


def _head_similarity(directions: Tensor, n_heads: Tensor) -> Tensor:
    # All pairs at once: the squared length of a sum of unit vectors holds every cosine twice.
    cosines = directions.sum(-3).square().sum(-1) - n_heads
    return torch.where(n_heads > 1, cosines / (n_heads * (n_heads - 1)), torch.nan)
