"""Static sigmoid branches in closed form: their number enters as a factor only.

Softplus is split into three parts, softplus(z) = z / 2 + |z| / 2 + log(1 + exp(-|z|)). The first is
linear, hence exact in the summed weights. The other two are even, and their mean over branches is
that over a Gaussian: known for the second, by quadrature for the third.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes._branches.potentials import mean_factor

# Gauss-Legendre on [0, 1]: with the stretch below, 32 nodes are exact to 1e-9 at every scale.
_NODES_ON_MINUS_ONE_TO_ONE, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(32)
_NODES = (_NODES_ON_MINUS_ONE_TO_ONE + 1) / 2
_WEIGHTS = _LEGENDRE_WEIGHTS / 2

# More classes than image classifiers have: there logits are too many to be made at once.
_LARGE_VOCABULARY = 2048

# Where the half-line integrals end: in standard deviations of the Gaussian, and, for logits of a
# large scale, in logits, beyond which the even part and its derivatives have died out (exp(-40)).
_LAST_DEVIATION = 9
_LAST_LOGIT = 40


def compressed_loss(
    features: Tensor,
    gram: Tensor,
    summed: Tensor,
    targets: Tensor,
    branches: int,
    excess: float = 0.0,
) -> Tensor:
    """Sum over static branches of the mean sigmoid loss, at a cost that knows no `branches`.

    Over many random branches the logits of one sample are nearly Gaussian, with the variance
    `v = h' S h / (N C)`. Only the even part of softplus uses that; the odd part and the targets'
    part are linear in the features, hence exact. What is left of the error is sampling noise that
    falls as 1 / sqrt(N), and a bias from the logits' fourth moment, which `excess` corrects to
    first order: E[g] = E_gauss[g] + excess / 24 * v^2 * E_gauss[4th derivative of g].

    Args:
        features: h, `(row, width)`.
        gram: S, the sum of W'W over branches, `(width, width)`.
        summed: V, the sum of W over branches, `(class, width)`.
        targets: Class indices `(row,)`, or one number per class `(row, class)`.
        branches: N, how many static branches `gram` and `summed` stand for.
        excess: Excess kurtosis of a logit over branches: 0 for Gaussian weights, see
            `orthogonal_excess` for orthogonal ones.
    """
    n_classes = len(summed)
    variance = ((features @ gram) * features).sum(1) / (max(branches, 1) * n_classes)

    # The even part of one logit, with the correction for its fourth moment, times their number.
    gaussian_mean: Tensor = _GaussianMean.apply(variance, 0)
    fourth_derivative_mean: Tensor = _GaussianMean.apply(variance, 2)
    correction = excess / 24 * variance**2 * fourth_derivative_mean
    even_part = branches * n_classes * (gaussian_mean + correction)

    # Half the sum of all logits is the odd part; those at the targets are what the targets take.
    odd_part, target_part = _linear_parts(features, summed, targets)
    total = even_part.sum() + odd_part / 2 - target_part
    return total * mean_factor("bce", len(features), n_classes)


def _linear_parts(features: Tensor, summed: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of all logits of the summed weights, and of those at the targets."""
    if len(summed) > _LARGE_VOCABULARY:
        # Sums first: `(row, class)` logits of a vocabulary would not fit into memory.
        is_soft = targets.dim() > 1
        target_weights = targets @ summed if is_soft else summed.index_select(0, targets)
        return features.sum(0) @ summed.sum(0), (features * target_weights).sum()

    summed_logits = features @ summed.mT
    if targets.dim() > 1:
        target_logits = summed_logits * targets
    else:
        target_logits = summed_logits.gather(1, targets[:, None])
    return summed_logits.sum(), target_logits.sum()


def orthogonal_excess(classes: int, width: int) -> float:
    """Return the excess kurtosis of w . h over random orthogonal matrices.

    There w . h / |h| is a coordinate of a random direction in d = max(classes, width) dimensions,
    whose excess kurtosis is -6 / (d + 2).
    """
    return -6 / (max(classes, width) + 2)


class _GaussianMean(torch.autograd.Function):
    """E[g(s x)] over x ~ N(0, 1) as a function of s^2, g an even-order derivative of softplus.

    `order` 0 stands for the even part of softplus itself, 1 for its second derivative, 2 for the
    fourth, and so on. By the heat equation d/d(s^2) E[g(s x)] = E[g''(s x)] / 2: the derivative is
    the next order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(variance: Tensor, order: int) -> Tensor:
        scale = variance.clamp_min(0).sqrt()[:, None]

        # The nodes reach to 9 standard deviations, or, for a large scale, to where g has died out.
        stretch = _LAST_DEVIATION / (1 + (scale * (_LAST_DEVIATION / _LAST_LOGIT)) ** 2).sqrt()
        nodes, weights = _quadrature_on(variance.dtype, variance.device)
        x = nodes * stretch
        weight = weights * stretch

        # The mean of an even function is twice its half-line integral: 2 / sqrt(2 pi).
        density = torch.exp(-x * x / 2) * math.sqrt(2 / math.pi)
        mean = (weight * density * _DERIVATIVES[order](scale * x)).sum(1)
        if order > 0:
            return mean

        # |z| / 2, taken out of softplus since its mean is known: E|s x| / 2 = s / sqrt(2 pi).
        return mean + scale[:, 0] / math.sqrt(2 * math.pi)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        variance, ctx.order = inputs
        ctx.save_for_backward(variance)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (variance,) = ctx.saved_tensors
        return upstream * _GaussianMean.apply(variance, ctx.order + 1) / 2, None


def _quadrature_on(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on a device, where they stay: sending them waits for it."""
    # Within a transform of functorch, or under a mode that replaces tensors (such as by fake ones),
    # what is made belongs to it, and is of no use afterwards.
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    if is_transformed or torch._C._len_torch_dispatch_stack():
        return _make_quadrature(dtype, device)
    return _kept_quadrature(dtype, device)


def _make_quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    # Not as tensors of an inference mode that may be on: no graph could keep them later.
    with torch.inference_mode(False):
        nodes = torch.as_tensor(_NODES, dtype=dtype, device=device)
        return nodes, torch.as_tensor(_WEIGHTS, dtype=dtype, device=device)


_kept_quadrature = lru_cache(_make_quadrature)


def _remainder(z: Tensor) -> Tensor:
    """Softplus without its odd part and without |z| / 2, for z >= 0."""
    return torch.log1p(torch.exp(-z))


def _second(z: Tensor) -> Tensor:
    """p (1 - p) with p = sigmoid(z); the higher derivatives are polynomials of it."""
    p = z.sigmoid()
    return p * (1 - p)


def _fourth(z: Tensor) -> Tensor:
    q = _second(z)
    return q * (1 - 6 * q)


def _sixth(z: Tensor) -> Tensor:
    q = _second(z)
    return q * (1 - 30 * q + 120 * q * q)


def _eighth(z: Tensor) -> Tensor:
    q = _second(z)
    return q * (1 - 126 * q + 1680 * q**2 - 5040 * q**3)


# By order, as `_GaussianMean` counts: each is the second derivative of the one before.
_DERIVATIVES = (_remainder, _second, _fourth, _sixth, _eighth)
