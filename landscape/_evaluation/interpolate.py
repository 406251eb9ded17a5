"""Interpolation of scattered values by radial functions, many columns at the price of one.

In torch rather than `scipy.interpolate.RBFInterpolator`, whose linear algebra does not heed torch's
number of threads: on one thread, 500 columns at 137 points take 40 ms there and 9 ms here.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Kernel = Literal["quintic", "thin_plate_spline"]


def interpolate(points: Array, values: Array, places: Array, kernel: Kernel = "quintic") -> Array:
    """Values at `places` of the smooth function that has the given ones.

    With `phi` the kernel and `q` monomials of low degree, the function is
    `f(p) = sum_i w_i phi(|p - p_i|) + sum_j v_j q_j(p)`, whose weights solve
    `[[phi, q], [q', 0]] [w, v] = [values, 0]`.

    Args:
        points: Where values are known, shape `(point, 2)`, of the size of 1.
        values: Shape `(point,)` or `(point, column)`.
        places: Where to interpolate, shape `(place, 2)`.
        kernel: `"quintic"`, or `"thin_plate_spline"`, which is rougher.

    Returns:
        Shape `(place,)` or `(place, column)`.

    Examples:
        >>> points = np.array([[0, 0], [1, 0], [0, 1], [1, 1.0]])
        >>> place = np.array([[0.5, 0.25]])
        >>> interpolate(points, points.sum(1), place, "thin_plate_spline").round(9)
        array([0.75])
    """
    radial, degree = (_quintic, 2) if kernel == "quintic" else (_thin_plate, 1)
    centres = torch.from_numpy(points)
    targets = torch.from_numpy(places)
    columns = torch.from_numpy(values).view(len(points), -1)

    # A power must not be a combination of lower ones: two rows of points tell no x^2 from 1.
    highest = [min(degree, len(np.unique(axis)) - 1) for axis in points.T]
    powers = [
        (i, j) for i in range(highest[0] + 1) for j in range(highest[1] + 1) if i + j <= degree
    ]

    polynomial = _monomials(centres, powers)
    corner = centres.new_zeros(len(powers), len(powers))
    upper = torch.cat([radial(_distances(centres, centres)), polynomial], 1)
    matrix = torch.cat([upper, torch.cat([polynomial.T, corner], 1)])
    right_side = torch.cat([columns, columns.new_zeros(len(powers), columns.shape[1])])
    weights = torch.linalg.solve(matrix, right_side)

    smooth = radial(_distances(targets, centres)) @ weights[: len(points)]
    interpolated: Array = smooth.add_(_monomials(targets, powers) @ weights[len(points) :]).numpy()
    return interpolated.reshape(len(places), *values.shape[1:])


def _distances(points: Tensor, centres: Tensor) -> Tensor:
    # Not by a matrix product, which would lose half of the digits.
    return torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _quintic(distance: Tensor) -> Tensor:
    square = distance.square()
    return square.mul_(square).mul_(distance).neg_()


def _thin_plate(distance: Tensor) -> Tensor:
    return torch.xlogy(distance.square(), distance)


def _monomials(points: Tensor, powers: list[tuple[int, int]]) -> Tensor:
    return torch.stack([points[:, 0] ** i * points[:, 1] ** j for i, j in powers], 1)
