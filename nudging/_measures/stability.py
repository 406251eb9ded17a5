import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from torch import nn

from nudging._measures.batch_agreement import (
    count_full_batches,
    describe_missing_batches,
    mean_gradient_of_full_batch,
    mean_pairwise_cosine,
)
from nudging._measures.batches import Request, measure_batches
from nudging._measures.numbers import Attributes, layer_coordinate, make_dataset
from resonance_toolkit import AtMost, Loss, check_whole


def stability(
    model: nn.Module,
    data: Any,
    blocks: str | Sequence[str] | None = None,
    *,
    n_batches: int = 8,
    batch_size: int = 128,
    loss: Loss | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Measure whether different batches agree on where a block's output should go.

    The stability is the mean cosine, over pairs of batches, between the gradients of their mean
    loss with respect to the block's output. It is near zero if samples pull in different
    directions, and near one if all gradients have collapsed onto one direction.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        n_batches: How many batches, at least two.
        batch_size: Samples in each.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        seed: Determines which samples are drawn.

    Returns:
        Dataset with `stability (layer)`. It is NaN if a batch has no gradient or there are fewer
        full batches than `n_batches`; the attribute `invalid` says so.

    Raises:
        ValueError: If an argument does not fit.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(2, 2))
        >>> data = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)  # all samples alike
        >>> stability(model, data, "0", n_batches=2, batch_size=2)["stability"].values.round(6)
        array([1.])
    """
    n_batches = check_whole("n_batches", n_batches, at_least=2)
    batch_size = check_whole("batch_size", batch_size)

    request = Request(
        verb="nudging.stability",
        model=model,
        data=data,
        blocks=blocks,
        credit=None,
        loss=loss,
        samples=AtMost(n_batches * batch_size),
        batch_size=batch_size,
        seed=seed,
    )
    measures = {"gradients": partial(mean_gradient_of_full_batch, batch_size=batch_size)}
    values, block_names, attributes = measure_batches(request, measures)

    # With fewer pairs of batches than asked for, the mean would not be comparable.
    n_samples = int(attributes["n_samples"])
    n_full = count_full_batches(values["gradients"])
    shortage = describe_missing_batches(n_full, n_samples, n_batches, batch_size)
    if shortage:
        warnings.warn(f"stability is NaN: {shortage}", stacklevel=2)
        agreement = np.full(len(block_names), np.nan)
    else:
        agreement = mean_pairwise_cosine(values["gradients"])

    long_name = "mean cosine of the batches' mean gradients"
    settings: Attributes = {
        "batch_size": batch_size,
        "n_batches": n_full,
        "invalid": shortage or "none",
    }
    return make_dataset(
        {"stability": ("layer", agreement, long_name)},
        {"layer": layer_coordinate(block_names)},
        attributes | settings,
    )
