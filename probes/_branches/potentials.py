"""The two built-in branch losses, as `sum of F(z) - target . z` with F convex and cheap to fuse."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

LossName = Literal["bce", "ce"]

# Called as `potential(logits, target_mass)`; gives the sum of F and its derivative at each logit.
Potential = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

# Elements of one chunk of logits: a cache's worth on a CPU, enough to fill an accelerator.
_CHUNK_ELEMENTS = {"cpu": 2**17}
_CHUNK_ELEMENTS_ON_ACCELERATORS = 2**24

# Fewer rows at once would read all weights for a handful of rows, at a vocabulary of 50,000 say.
_LEAST_ROWS = 64

# Rows multiplied before one logarithm: each factor lies in [1/2, 1], so 64 cannot underflow.
_ROWS_PER_LOGARITHM = 64


def sigmoid_potential(logits: Tensor, target_mass: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of softplus over `logits (row, branch, class)`, and its derivative, the sigmoid.

    Uses softplus(z) = (z + |z|) / 2 - log(sigmoid(|z|)), with one logarithm for 64 factors: five
    times cheaper than softplus itself on a CPU, and as exact. Overwrites `logits`. The sum of a
    row's targets, `target_mass (row,)`, plays no part: every class is a loss of its own.
    """
    magnitude = logits.abs()
    total = (logits.sum() + magnitude.sum()) / 2

    for factors in magnitude.sigmoid_().split(_ROWS_PER_LOGARITHM):
        total = total - factors.prod(0).log_().sum()

    return total, logits.sigmoid_()


def softmax_potential(logits: Tensor, target_mass: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of `target_mass * logsumexp` over classes, and its derivative. Overwrites `logits`."""
    log_partition = logits.logsumexp(-1, keepdim=True)
    row_weight = target_mass[:, None, None]

    total = (log_partition * row_weight).sum()
    return total, logits.sub_(log_partition).exp_().mul_(row_weight)


POTENTIALS: dict[LossName, Potential] = {"bce": sigmoid_potential, "ce": softmax_potential}


def mean_factor(loss: LossName, n_rows: int, n_classes: int) -> float:
    """Return what makes sums means: over samples, and for sigmoid losses over classes."""
    return 1 / (n_rows * n_classes) if loss == "bce" else 1 / n_rows


def chunk_sizes(
    n_rows: int, n_branches: int, n_classes: int, device: torch.device
) -> tuple[int, int]:
    """Say how many rows and how many branches to do at once."""
    budget = _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS_ON_ACCELERATORS)

    fits_all_rows = n_rows * n_classes <= budget
    chunk_rows = n_rows if fits_all_rows else max(_LEAST_ROWS, budget // n_classes)
    chunk_branches = max(1, min(n_branches, budget // (chunk_rows * n_classes)))
    return chunk_rows, chunk_branches
