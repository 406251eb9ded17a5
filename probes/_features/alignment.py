"""Debiased linear CKA from products of samples, batch by batch.

With `K = X X'` and `L = Y Y'` the products of `n` samples by two sets of features, the unbiased
estimator of their dependence (Song et al. 2012) is `<K*, L*> / (n (n - 3))`, where `K*` is `K` with
a zero diagonal, centred so that its rows sum to zero as they do in expectation (Szekely and Rizzo
2014). CKA divides it by the roots of the same for `(K, K)` and `(L, L)`; for many samples all three
are averaged over batches first (Nguyen et al. 2021), so that no more than one batch is held.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from torch import Tensor

from resonance_toolkit import widest_float

Array = NDArray[np.float64]

# The estimator divides by n - 3.
FEWEST_SAMPLES = 4


def centre_sample_products(features: list[Tensor]) -> Tensor:
    """`K*` of each set of features, flattened, shape `(set, sample * sample)`.

    Args:
        features: Sets of features of the same samples, `(sample, ...)` each.
    """
    products = [_centre_products(_sample_products(x)).flatten() for x in features]

    # Layers may be on different devices; on which products are compared does not matter.
    return torch.stack([rows.to(products[0]) for rows in products])


def unbiased_dependences(first: Tensor, second: Tensor, n_samples: int) -> Tensor:
    """Unbiased dependence of each set of features on each other one, `(first set, second set)`."""
    return first @ second.T / (n_samples * (n_samples - 3))


def kernel_alignment(crossed: Array, first: Array, second: Array, weights: Array) -> Array:
    """CKA from dependences of batches.

    Args:
        crossed: Between both sides, `(batch, first, second)`.
        first, second: Of each side on itself, `(batch, set)`.
        weights: Of the batches; they add up to 1.

    Returns:
        `(first, second)`; NaN where a side does not vary.
    """
    mean_crossed = np.tensordot(weights, crossed, 1)
    mean_first = weights @ first
    mean_second = weights @ second

    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.sqrt(np.outer(mean_first, mean_second))
        return np.where(scale > 0, mean_crossed / scale, np.nan)


def jackknife_error(crossed: Array, first: Array, second: Array, weights: Array) -> Array:
    """Standard error of `kernel_alignment`, each batch left out in turn; NaN for a single one."""
    n_batches = len(weights)
    if n_batches < 2:
        return np.full(crossed.shape[1:], np.nan)

    estimates = []
    for batch in range(n_batches):
        other_weights = np.where(np.arange(n_batches) == batch, 0.0, weights)
        other_weights = other_weights / other_weights.sum()
        estimates.append(kernel_alignment(crossed, first, second, other_weights))

    spread = np.var(estimates, axis=0)
    return np.asarray(np.sqrt((n_batches - 1) * spread))


def half_width(n_batches: int, level: float) -> float:
    """Standard errors from the middle of an interval to its ends, by Student's t."""
    return float(stdtrit(n_batches - 1, (1 + level) / 2)) if n_batches > 1 else math.nan


def _sample_products(x: Tensor) -> Tensor:
    # A shift changes nothing but the rounding.
    rows = x.flatten(1).to(widest_float(x.device))
    rows = rows - rows.mean(0)
    return rows @ rows.T


def _centre_products(products: Tensor) -> Tensor:
    n = len(products)
    centred = products.clone().fill_diagonal_(0)
    row_sums = centred.sum(1) / (n - 2)
    total = centred.sum() / ((n - 1) * (n - 2))
    return (centred - row_sums[:, None] - row_sums + total).fill_diagonal_(0)
