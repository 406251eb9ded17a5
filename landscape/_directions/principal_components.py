"""The plane in which checkpoints vary most."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from landscape._directions.parameters import Params
from landscape._directions.random_directions import random_direction
from landscape._directions.states import State, combine, difference
from landscape._directions.vectors import dot, norm, orthogonalise
from resonance_toolkit import to_host, widest_float

Array = NDArray[np.float64]

# A share of the variance below this is round-off: the path is a line.
_LEAST_SHARE = 1e-12


def principal_components(
    checkpoints: Sequence[State], last: Params
) -> tuple[tuple[Params, Params], Array]:
    """First two principal components, orthonormal, and their shares of the variance.

    From the matrix of inner products between checkpoints: no array of all of them is made.
    """
    steps = [difference(c, last, f"checkpoints[{i}]") for i, c in enumerate(checkpoints)]
    products = np.array([[dot(a, b) for b in steps] for a in steps])
    if not np.isfinite(products).all():
        raise ValueError("`checkpoints`: expected finite weights, got NaN or inf")

    # With X the steps as rows and C = 1 - 1/n, an eigenpair (value, u) of C X X' C belongs to the
    # component X' C u / sqrt(value).
    centring = np.eye(len(steps)) - 1 / len(steps)
    values, vectors = np.linalg.eigh(centring @ products @ centring)
    if not values[-1] > 0:
        raise ValueError(
            "`checkpoints`: expected weights that change, got the same ones throughout"
        )

    shares = np.maximum(values[::-1], 0) / np.maximum(values, 0).sum()
    shares[1] = shares[1] if shares[1] > _LEAST_SHARE else 0.0

    first = combine((centring @ vectors[:, -1] / math.sqrt(values[-1])).tolist(), steps)
    if shares[1]:
        second = combine((centring @ vectors[:, -2] / math.sqrt(values[-2])).tolist(), steps)
    else:
        second = _any_orthogonal(first)
    return (_with_fixed_sign(first), _with_fixed_sign(second)), shares[:2]


def _any_orthogonal(first: Params) -> Params:
    if sum(tensor.numel() for tensor in first.values()) < 2:
        raise ValueError("`checkpoints`: expected two or more numbers to move, got one")

    second = random_direction(first, seed=0, axis=1)
    orthogonalise([first, second])
    length = norm(second)
    return {name: tensor / length for name, tensor in second.items()}


def _with_fixed_sign(direction: Params) -> Params:
    """Make the sum of all numbers positive: eigenvectors come with either sign."""
    sums = [t.to(widest_float(t.device)).sum() for t in direction.values()]
    total = sum(partial_sum.item() for partial_sum in to_host(sums))
    return direction if total >= 0 else {name: -tensor for name, tensor in direction.items()}
