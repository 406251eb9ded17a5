"""Products with the Hessian from two gradients, where a loss cannot be differentiated twice.

    H v  ~  (g(w + h v) - g(w - h v)) / 2 h

Its error has two parts: that of the third derivative grows as `h^2`, that of rounding as `eps / h`.
Which step balances them depends on the loss; it is found by trying a few around `eps^(1/3) |w|`.
A third part comes from kinks: a ReLU between both points adds the jump of the gradient over `2 h`.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from landscape._curvature.matrix import Block, CurvatureMatrix, sum_of_slopes
from landscape._evaluation.displace import restoring

# Steps to try, as multiples of `eps^(1/3)` of the length of the weights.
_TRIAL_STEPS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)

# What two products are compared by: one takes a step so much longer than the other.
_STEP_RATIO = 4.0

# Vectors are unlike: what a few of them show, some times that holds for most.
_SAFETY = 3.0

# Steps are tried along a random vector, and along as many of its powers, which turn to where the
# matrix is largest.
_N_POWERS = 2

# Seeds the vector along which steps are tried. Any number will do.
_TRIAL_SEED = 0x51EE


class FiniteDifferences:
    """Multiplies by the Hessian of the batches of this process, with a step of its own choice.

    Attributes:
        error: What products with unit vectors are known to, relative to the norm of the matrix: by
            how much those of the chosen step and of one four times as long differ, along a random
            vector and its powers.
    """

    def __init__(self, matrix: CurvatureMatrix) -> None:
        self._matrix = matrix
        self._params = list(matrix.params.values())
        self._scale = max(torch.finfo(p.dtype).eps for p in self._params) ** (1 / 3)
        self._relative_step, self.error = self._choose_step()

    def multiply(self, block: Block, vector: Sequence[Tensor]) -> list[Tensor]:
        """The product of a block with a vector that has a tensor for each of its parameters."""
        return self._difference(block, vector, self._relative_step)

    def multiply_otherwise(self, block: Block, vector: Sequence[Tensor]) -> list[Tensor]:
        """The same product with another step: where they differ, neither is known."""
        return self._difference(block, vector, _STEP_RATIO * self._relative_step)

    def _difference(
        self, block: Block, vector: Sequence[Tensor], relative_step: float
    ) -> list[Tensor]:
        params = [self._params[i] for i in block]
        vector_length = _length(vector)
        if not vector_length:
            return [torch.zeros_like(p) for p in params]

        # Weights that are zero have no length to go by.
        step = relative_step * (_length(params) or 1.0) / vector_length
        names = [list(self._matrix.params)[i] for i in block]
        with restoring(dict(zip(names, params, strict=True))) as origin:
            ahead = self._slopes_at(params, list(origin.values()), vector, step)
            behind = self._slopes_at(params, list(origin.values()), vector, -step)

        return [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]

    def _slopes_at(
        self,
        params: Sequence[Tensor],
        origin: Sequence[Tensor],
        vector: Sequence[Tensor],
        distance: float,
    ) -> list[Tensor]:
        for parameter, weights, piece in zip(params, origin, vector, strict=True):
            parameter.data.copy_(weights + distance * piece)
        return sum_of_slopes(self._matrix, list(params))

    def _choose_step(self) -> tuple[float, float]:
        """Take the step whose products differ least from those of the next longer one."""
        block = range(len(self._params))
        generator = torch.Generator().manual_seed(_TRIAL_SEED)
        vector = [
            torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu").to(p)
            for p in self._params
        ]

        steps = [factor * self._scale for factor in _TRIAL_STEPS]
        differences = np.zeros(len(steps) - 1)
        matrix_norm = 0.0
        for _ in range(1 + _N_POWERS):
            length = _length(vector)
            if not length or not math.isfinite(length):
                break

            products = [self._difference(block, vector, step) for step in steps]
            distances = [_distance(*pair) / length for pair in pairwise(products)]
            differences = np.maximum(differences, distances)

            # Errors make products longer: the shortest tells most of the norm of the matrix.
            matrix_norm = max(matrix_norm, min(map(_length, products)) / length)
            vector = products[int(differences.argmin())]

        best = int(differences.argmin())
        error = _SAFETY * float(differences[best]) / matrix_norm if matrix_norm else 0.0
        return steps[best], error


def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return _length([x - y for x, y in zip(a, b, strict=True)])


def _length(tensors: Sequence[Tensor]) -> float:
    squares = [tensor.detach().square().sum().cpu().double() for tensor in tensors]
    return float(torch.stack(squares).sum().sqrt())
