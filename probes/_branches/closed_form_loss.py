"""Static sigmoid branches in closed form: their number enters as a factor only."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes._branches.potentials import scale_of

# Gauss-Legendre on [0, 1]: with the stretch below, 32 nodes are exact to 1e-9 at every scale.
_LEGENDRE = np.polynomial.legendre.leggauss(32)
_NODES, _WEIGHTS = (_LEGENDRE[0] + 1) / 2, _LEGENDRE[1] / 2


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
    classes = len(summed)
    logits = max(branches, 1) * classes
    variance = ((features @ gram) * features).sum(1) / logits
    even: Tensor = _Even.apply(variance, 0)
    even = branches * classes * (even + excess / 24 * variance**2 * _Even.apply(variance, 2))
    linear = features @ summed.mT
    goal = linear * targets if targets.dim() > 1 else linear.gather(1, targets[:, None])
    value = even.sum() + linear.sum() / 2 - goal.sum()
    return value * scale_of("bce", len(features), classes)


def orthogonal_excess(classes: int, width: int) -> float:
    """Excess kurtosis of w.h for a random orthogonal matrix: a coordinate of a random direction."""
    return -6 / (max(classes, width) + 2)


class _Even(torch.autograd.Function):
    """E[g(s x)] over x ~ N(0, 1) as a function of s^2, g an even-order derivative of softplus.

    By the heat equation d/d(s^2) E[g(s x)] = E[g''(s x)] / 2: the derivative is the next order.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(variance: Tensor, order: int) -> Tensor:
        scale = variance.clamp_min(0).sqrt()[:, None]
        # E over x of an even function is twice its half-line integral. Nodes reach to 9 standard
        # deviations, or, for large s, to where g has died out.
        stretch = 9 / (1 + (scale * (9 / 40)) ** 2).sqrt()
        x = torch.as_tensor(_NODES, dtype=variance.dtype, device=variance.device) * stretch
        weight = torch.as_tensor(_WEIGHTS, dtype=variance.dtype, device=variance.device) * stretch
        density = torch.exp(-x * x / 2) * math.sqrt(2 / math.pi)
        value = (weight * density * _DERIVATIVES[order](scale * x)).sum(1)
        # |z| / 2, taken out of softplus since its mean is known: E|s x| / 2 = s / sqrt(2 pi).
        return value + scale[:, 0] / math.sqrt(2 * math.pi) if order == 0 else value

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        variance, ctx.order = inputs
        ctx.save_for_backward(variance)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (variance,) = ctx.saved_tensors
        return upstream * _Even.apply(variance, ctx.order + 1) / 2, None


def _remainder(z: Tensor) -> Tensor:
    """Softplus without its odd part and without |z| / 2, for z >= 0."""
    return torch.log1p(torch.exp(-z))


def _second(z: Tensor) -> Tensor:
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


_DERIVATIVES = (_remainder, _second, _fourth, _sixth, _eighth)
