"""Interpolation by radial functions and the estimate of its error, against scipy's."""

import numpy as np
import pytest
import torch
from scipy.interpolate import RBFInterpolator

from landscape._evaluation.adaptive import Adaptive
from landscape._evaluation.interpolate import interpolate
from landscape._evaluation.points import Run

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


@pytest.mark.parametrize(("tolerance", "decides"), [(0.02, "misses"), (0.01, "change")])
def test_the_estimate_is_what_scipy_makes_of_the_same_points(tolerance, decides):
    places = np.stack(np.meshgrid(*[np.linspace(-1, 1, 31)] * 2, indexing="ij"), -1).reshape(-1, 2)
    asked = []

    def surface(points):
        asked.extend(points)
        x, y = points.T
        loss = np.exp(x) * np.cos(2 * y) + 0.02 * np.abs(np.sin(6 * (x + y)))
        return np.stack([loss, np.full_like(loss, np.nan), np.full_like(loss, np.nan)], 1)

    run = Run(places, surface, n_values=3, points_per_piece=31)
    strategy = Adaptive((31, 31), tolerance, seed=0)
    table, estimate = strategy.fill(run, ["loss", "loss_se", "accuracy"])

    at = np.array(asked)
    values = surface(at)[:, 0]
    assert 77 <= len(at) < 400
    now = RBFInterpolator(at, values, kernel="quintic")(places)
    part = int(0.6 * len(at))
    before = RBFInterpolator(at[:part], values[:part], kernel="quintic")(places)
    missed = [  # by what was known before each of the last two rounds of twenty
        abs(RBFInterpolator(at[:n], values[:n], kernel="quintic")(at[n:m]) - values[n:m]).max()
        for n, m in ((len(at) - 40, len(at) - 20), (len(at) - 20, len(at)))
    ]
    change = abs(now - before).max()
    assert decides == ("misses" if 2 * max(missed) > change else "change")
    expected = max(change, 2 * max(missed)) / np.ptp(values)
    assert estimate == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(table[~run.is_done, 0], now[~run.is_done], atol=1e-8)


def test_a_surface_does_not_depend_on_the_number_of_threads():
    # Which number evaluates the points is decided by a clock.
    side = np.linspace(-1, 1, 51)
    places = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)

    def values(points):
        x, y = points.T
        loss = np.exp(x) * np.cos(2 * y)
        margins = np.sin(np.arange(1, 41) * x[:, None] + y[:, None])
        return np.column_stack([loss, 0.1 * loss**2, 0 * loss, margins])

    tables = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            run = Run(places, values, n_values=43, points_per_piece=51)
            strategy = Adaptive((51, 51), 0.01, seed=0)
            tables.append(strategy.fill(run, ["loss", "loss_se", "accuracy"])[0])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert not run.is_done.all()
    for table in tables[1:]:
        np.testing.assert_array_equal(table, tables[0])
