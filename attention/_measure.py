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
    return measure_seen(torch.where(there, weights, 0), there, threshold=threshold, mass=mass)


def measure_seen(
    share: Tensor, there: Tensor, *, threshold: float, mass: float
) -> dict[str, Tensor]:
    """`measure` weights that are zero, not NaN, where a key is not `there`."""
    n_keys = there.sum(-1).to(share.dtype)
    n_keys = torch.where(n_keys > 0, n_keys, torch.nan)
    falling = _falling(share)
    peak = falling[..., 0]
    entropy = torch.special.entr(share).sum(-1)
    squares = share.square().sum(-1)
    place = torch.arange(1, share.size(-1) + 1, device=share.device, dtype=share.dtype)
    # Absent keys sort last with weight zero, so they add nothing, whatever their place.
    gini = (falling * (n_keys[..., None] + 1 - 2 * place)).sum(-1) / n_keys
    covered = (there & (share >= threshold * peak[..., None])).sum(-1)
    # The margin keeps rounding from asking for one key more.
    gathered = (falling.cumsum(-1) < mass * (1 - 1e-6)).sum(-1) + 1
    known = n_keys / n_keys
    directions = share / squares.sqrt().clamp_min(1e-30)[..., None]
    return {
        "entropy": entropy * known,
        "normalised_entropy": torch.where(n_keys > 1, entropy / n_keys.log(), torch.nan),
        "gini": gini,
        "peak": peak * known,
        "coverage": covered / n_keys,
        "mass_coverage": gathered.clamp(max=share.size(-1)) / n_keys,
        "participation": known / squares,
        "head_similarity": _head_similarity(directions, known.nansum(-2)),
    }


def _falling(share: Tensor) -> Tensor:
    if share.device.type != "cpu":
        return share.sort(-1, descending=True).values
    # Numpy sorts short rows with vector instructions, some fifty times faster than torch.
    return torch.from_numpy(np.sort(share.numpy(), -1)).flip(-1)


def _head_similarity(directions: Tensor, n_heads: Tensor) -> Tensor:
    # All pairs at once: the squared length of a sum of unit vectors holds every cosine twice.
    cosines = directions.sum(-3).square().sum(-1) - n_heads
    return torch.where(n_heads > 1, cosines / (n_heads * (n_heads - 1)), torch.nan)
