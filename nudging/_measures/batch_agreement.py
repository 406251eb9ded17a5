"""What `stability` and `audit` share: do the mean gradients of different batches agree?"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from nudging._measures.batches import ObservedBatch
from nudging._measures.numbers import Array


def mean_gradient_of_full_batch(batch: ObservedBatch, batch_size: int) -> dict[str, Tensor]:
    """Return each block's mean gradient over the batch as a column, `(feature, 1)`.

    A batch with fewer samples has a noisier mean: it gives no column, `(feature, 0)`.
    """
    n_columns = 1 if len(batch.state) == batch_size else 0
    return {
        name: gradient.double().mean(0).flatten().cpu()[:, None][:, :n_columns]
        for name, gradient in batch.state.gradient().items()
    }


def mean_pairwise_cosine(mean_gradients: Mapping[str, Array]) -> Array:
    """By block, average over pairs of batches; NaN if a batch has no gradient.

    Args:
        mean_gradients: By block, `(feature, batch)`.
    """
    cosines = []
    for columns in mean_gradients.values():
        rows = torch.from_numpy(columns.T.copy())
        unit_rows = rows / rows.norm(dim=1, keepdim=True)  # 0 / 0 is NaN

        # The sum over ordered pairs of different batches: all entries but the diagonal.
        products = unit_rows @ unit_rows.T
        total = products.sum() - products.diagonal().sum()
        cosines.append(float(total) / (len(rows) * (len(rows) - 1)))
    return np.array(cosines)


def describe_missing_batches(n_samples: int, n_batches: int, batch_size: int) -> str:
    """Say why there are too few full batches; nothing if there are enough."""
    n_needed = n_batches * batch_size
    if n_samples >= n_needed:
        return ""
    return (
        f"expected {n_needed} samples (n_batches={n_batches} times batch_size={batch_size}), data "
        f"has {n_samples}; give smaller ones"
    )
