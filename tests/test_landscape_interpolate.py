"""Interpolation by radial functions, against scipy's, and polynomials that it must reproduce."""

import numpy as np
import pytest
from scipy.interpolate import RBFInterpolator

from landscape._interpolate import interpolate

PLACES = np.stack(np.meshgrid(np.linspace(-1, 1, 21), np.linspace(-1, 1, 17)), -1).reshape(-1, 2)


def some_points(n=60, seed=0):
    return PLACES[np.random.default_rng(seed).choice(len(PLACES), n, replace=False)]


@pytest.mark.parametrize("kernel", ["quintic", "thin_plate_spline"])
@pytest.mark.parametrize("columns", [(), (1,), (7,)])
def test_equals_scipy(kernel, columns):
    at = some_points()
    values = np.random.default_rng(1).normal(size=(len(at), *columns))
    expected = RBFInterpolator(at, values, kernel=kernel)(PLACES)
    np.testing.assert_allclose(interpolate(at, values, PLACES, kernel), expected, atol=1e-8)


@pytest.mark.parametrize("kernel", ["quintic", "thin_plate_spline"])
def test_given_values_come_back(kernel):
    at = some_points()
    values = np.random.default_rng(1).normal(size=len(at))
    np.testing.assert_allclose(interpolate(at, values, at, kernel), values, atol=1e-9)


def test_quadratics_are_exact():
    def quadratic(p):
        x, y = p.T
        return 1 + 2 * x - 3 * y + 4 * x * x + 5 * x * y - 6 * y * y

    at = some_points(30)
    np.testing.assert_allclose(interpolate(at, quadratic(at), PLACES), quadratic(PLACES), atol=1e-9)


@pytest.mark.parametrize("axis", [0, 1])
def test_two_rows_of_points_are_enough(axis):
    # x^2 is 1 on both rows: a system with both would have no single solution.
    at = np.array([(x, y) for x in (-1.0, 1.0) for y in np.linspace(-1, 1, 9)])
    at = np.roll(at, axis, axis=1)
    values = 1 + at[:, 0] * at[:, 1] + at[:, 1 - axis] ** 2
    found = interpolate(at, values, at)
    np.testing.assert_allclose(found, values, atol=1e-9)
    between = (at[:-1] + at[1:])[:8] / 2
    expected = 1 + between[:, 0] * between[:, 1] + between[:, 1 - axis] ** 2
    np.testing.assert_allclose(interpolate(at, values, between), expected, atol=1e-9)
