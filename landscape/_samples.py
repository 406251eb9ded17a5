"""The fixed samples on which every point is evaluated."""

import warnings
from typing import Any

from torch import nn

from landscape._checkpoint import fingerprint
from resonance import Batches, take

_CHECKED = 32  # samples compared between two passes


def fixed_samples(model: nn.Module, data: Any, samples: int | None, seed: int) -> Batches:
    """Draw the samples once, on the model's device; refuse data that change between passes."""
    if type(seed) is not int:
        raise ValueError(f"`seed`: expected a whole number, got {seed!r}")
    batches = take(data, samples, seed, model=model)
    if not isinstance(data, list | tuple):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # fewer than asked for: said once, above
            first, second = (fingerprint(take(data, _CHECKED, seed)) for _ in range(2))
        refuse_changes(first, second)
    return batches


def refuse_changes(first: object, second: object) -> None:
    """Raise if fingerprints of two passes over the same data differ."""
    if first != second:
        raise ValueError(
            "`data`: gives other samples on a second pass, so points would not be comparable; "
            "give tensors, or data without shuffling or augmentation of its own"
        )
