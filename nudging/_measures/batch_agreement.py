"""What `stability` and `audit` share: do the mean gradients of different batches agree?"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nudging._measures.batches import ObservedBatch
from nudging._measures.numbers import Array, without_padding
from resonance_toolkit import widest_float


def mean_gradient_of_full_batch(batch: ObservedBatch, batch_size: int) -> dict[str, Tensor]:
    """Return each block's mean gradient over the batch as a column, `(feature, 1)`.

    Where samples have positions it is `(position, feature, 1)`. A batch with fewer samples has a
    noisier mean: it gives no column, `(feature, 0)`.
    """
    n_columns = 1 if len(batch.state) == batch_size else 0
    gradients = without_padding(batch.state, batch.state.gradient())

    columns = {}
    for name, gradient in gradients.items():
        mean = gradient.to(widest_float(gradient.device)).mean(0)
        features = mean if mean.dim() == 2 else mean.flatten()
        columns[name] = features[..., None][..., :n_columns]
    return columns


def count_full_batches(mean_gradients: Mapping[str, Array]) -> int:
    """Count the columns that `mean_gradient_of_full_batch` gave, over all batches."""
    return int(next(iter(mean_gradients.values())).shape[-1])


def mean_pairwise_cosine(mean_gradients: Mapping[str, Array]) -> Array:
    """By block, average over pairs of batches; NaN if a batch has no gradient.

    Args:
        mean_gradients: By block, `(feature, batch)` or `(position, feature, batch)`.
    """
    cosines = []
    for columns in mean_gradients.values():
        n_batches = columns.shape[-1]
        rows = torch.from_numpy(columns.reshape(-1, n_batches).T.copy())
        unit_rows = rows / rows.norm(dim=1, keepdim=True)  # 0 / 0 is NaN

        # The sum over ordered pairs of different batches: all entries but the diagonal.
        products = unit_rows @ unit_rows.T
        total = products.sum() - products.diagonal().sum()
        cosines.append(float(total) / (len(rows) * (len(rows) - 1)))
    return np.array(cosines)


def describe_missing_batches(n_full: int, n_samples: int, n_batches: int, batch_size: int) -> str:
    """Say why there are too few full batches; nothing if there are enough."""
    if n_full >= n_batches:
        return ""

    n_needed = n_batches * batch_size
    if n_samples >= n_needed:
        return (
            f"expected {n_batches} batches of {batch_size} samples of one shape, data has {n_full};"
            " give a smaller batch_size, or pad all samples to one length"
        )
    return (
        f"expected {n_needed} samples (n_batches={n_batches} times batch_size={batch_size}), data "
        f"has {n_samples}; give smaller ones"
    )
