import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._measures.batches import check_whole, observing
from nudging._measures.numbers import Array, attributes, dataset, layers
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost


def stability(
    model: nn.Module,
    data: Any,
    blocks: str | Sequence[str],
    *,
    n_batches: int = 8,
    batch_size: int = 128,
    loss: Loss | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Do different batches agree on where a block's output should go?

    The mean pairwise cosine, over batches, of the mean loss gradient with respect to the block's
    output. It is near zero where samples pull in directions of their own, and near one where all
    gradients have collapsed onto one direction.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        blocks: Names or patterns of modules that return one tensor, samples first.
        n_batches: How many batches, at least two.
        batch_size: Samples in each.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        seed: Decides which samples.

    Returns:
        Dataset with `stability (layer)`, NaN where a batch has no gradient or there are fewer full
        batches than asked for; the attribute `invalid` says if so.

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is of the wrong kind.
    """
    check_whole("n_batches", n_batches, 2)
    check_whole("batch_size", batch_size, 1)
    with observing(
        model, data, blocks, None, loss=loss, samples=AtMost(n_batches * batch_size),
        batch_size=batch_size, seed=seed, label="stability",
    ) as batches:  # fmt: skip
        means, n_samples = [], 0
        for seen in batches:
            n_samples += len(seen.state)
            if len(seen.state) == batch_size:
                means.append(mean_gradients(seen.state.gradient()))
            last = seen
    names, about = layers(last)
    lack = lacking(n_samples, n_batches, batch_size)
    if lack:
        warnings.warn(f"stability is NaN: {lack}", stacklevel=2)
    values = np.full(len(names), np.nan) if lack else pairwise_cosine(means)
    text = "mean cosine of the batches' mean gradients"
    return dataset(
        {"stability": ("layer", values, text)},
        {"layer": (names, about)},
        attributes("nudging.stability", model, None, last, seed=seed, batch_size=batch_size)
        | {"n_batches": len(means), "invalid": lack or "none"},
    )


def lacking(n_samples: int, n_batches: int, batch_size: int) -> str:
    """Why there are too few full batches; nothing if there are enough."""
    needed = n_batches * batch_size
    if n_samples >= needed:
        return ""
    return (
        f"expected {needed} samples (n_batches={n_batches} times batch_size={batch_size}), data "
        f"has {n_samples}; give smaller ones"
    )


def mean_gradients(gradient: dict[str, Tensor]) -> list[Tensor]:
    """By block, the mean over samples, as one vector in double precision."""
    return [value.double().mean(0).flatten().cpu() for value in gradient.values()]


def pairwise_cosine(means: list[list[Tensor]]) -> Array:
    """By block, the mean over pairs of batches; NaN if a batch has no gradient."""
    found = []
    for vectors in zip(*means, strict=True):
        rows = torch.stack(vectors)
        unit = rows / rows.norm(dim=1, keepdim=True)  # 0 / 0 is NaN
        table = unit @ unit.T
        off = table.sum() - table.diagonal().sum()
        found.append(float(off) / (len(rows) * (len(rows) - 1)))
    return np.array(found)
