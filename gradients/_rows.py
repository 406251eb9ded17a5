from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradients._recorders.inner_products import full_matrices
from gradients._recorders.protocol import Measurement

Array = NDArray[np.float64]


@dataclass
class Row:
    """One sampled update, by layer."""

    step: int
    loss: Array  # (objective,)
    dot: Array  # (layer, objective, other): over the parameters that both reach
    square: Array  # (layer, objective, other): squared norm of the first, over the same
    grad_norm: float  # of the sum of all losses, over all parameters


def make_row(
    step: int, losses: Tensor, scale: Tensor, measured: Measurement, owners: list[int], layers: int
) -> Row:
    """Bring a measurement to the CPU, undo its scale and add it up by layer."""
    count = len(losses)
    numbers = torch.cat([losses, scale.reshape(1), measured.products.reshape(-1)]).cpu().numpy()
    products = numbers[count + 1 :].reshape(len(owners), -1) / numbers[count] ** 2
    # A gradient that overflowed says nothing: the scaler will skip this update.
    finite = bool(np.isfinite(products).all())
    matrices = full_matrices(products, count)
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    reached = measured.reached & (diagonal != 0) if measured.zero_is_unreached else measured.reached
    both = reached[:, :, None] & reached[:, None, :]
    shared = np.zeros((layers, count, count), dtype=bool)
    dot, square = np.zeros((2, layers, count, count))
    np.logical_or.at(shared, owners, both)
    np.add.at(dot, owners, np.where(both, matrices, 0.0))
    np.add.at(square, owners, np.where(both, diagonal[:, :, None], 0.0))
    known = shared if finite else np.zeros_like(shared)
    read = finite and bool(measured.reached.any())
    return Row(
        step,
        numbers[:count],
        np.where(known, dot, np.nan),
        np.where(known, square, np.nan),
        float(np.sqrt(max(matrices.sum(), 0.0))) if read else float("nan"),
    )
