"""The fixed samples on which every point is evaluated."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from resonance import Batches, take

_CHECKED = 32  # samples compared between two passes


def fixed_samples(model: nn.Module, data: Any, samples: int | None, seed: int) -> Batches:
    """Draw the samples once, on the model's device; refuse data that change between passes."""
    batches = take(data, samples, seed, model=model)
    if not isinstance(data, list | tuple):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer than asked for: said once, above
            passes = [take(data, _CHECKED, seed) for _ in range(2)]
        refuse_changes(*passes)
    return batches


def refuse_changes(first: Batches, second: Batches) -> None:
    """Raise if two passes over the same data differ."""
    one, two = (
        [leaf for leaf in tree_leaves(batches) if isinstance(leaf, Tensor)]
        for batches in (first, second)
    )
    same = len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    if not same:
        raise ValueError(
            "`data`: gives other samples on a second pass, so points would not be comparable; "
            "give tensors, or data without shuffling or augmentation of its own"
        )


def is_streamable(data: Any) -> bool:
    """True for a loader (anything but tensors, lists and datasets) that can be passed over."""
    return hasattr(data, "__iter__") and not isinstance(data, list | tuple | Dataset)
