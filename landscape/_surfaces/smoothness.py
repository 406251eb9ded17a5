from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import check_not_negative, provenance

Array = NDArray[np.float64]
Statistic = tuple[str, Array]  # long name, values

# Slopes of neighbouring steps that correlate less than this are not resolved by the grid.
_RESOLVED = 0.5


def smoothness(surface: xr.Dataset, *, radii: Sequence[float] = (0.25, 0.5, 1.0)) -> xr.Dataset:
    """Describe how rough a loss surface is, by the statistics of the paper's tables 7, 8 and more.

    Args:
        surface: A result of `grid`, with `loss (..., alpha, beta)`; further dimensions are kept.
        radii: Distances from (0, 0) for `sharpness`.

    Returns:
        Dataset over the further dimensions of `surface`, in nats if the loss is in nats:
        `std` and `range` of the loss; `mean_grad`, the mean length of the finite-difference
        gradient, and `mean_grad_per_step`, the same with one grid step as the unit of length (the
        papers' numbers only fit this one); `total_variation`, the integral of `|dL/dalpha| +
        |dL/dbeta|`; `curvature_min`, `curvature_max`, the extreme eigenvalues of the in-plane
        Hessian, and `convex_share`, where both are at least 0; `sharpness (..., radius)`, the
        largest rise above (0, 0) within a radius (NaN if (0, 0) is not a point);
        `slope_correlation` between neighbouring steps, near 1 for a surface that the grid resolves,
        about 0 or less for noise (NaN on a flat surface); `under_resolved`, 1 if that is below 0.5;
        and `n_non_finite`, points left out of everything else.

    Raises:
        ValueError: If `surface` has no `loss` over `alpha` and `beta` of 3 x 3 points or more, or
            `radii` is not a sequence of finite numbers of at least zero.

    Examples:
        >>> axis = np.linspace(-1, 1, 5)
        >>> bowl = xr.Dataset({"loss": (("alpha", "beta"), axis[:, None] ** 2 + 0 * axis)},
        ...                   coords={"alpha": axis, "beta": axis})
        >>> rough = smoothness(bowl, radii=[1.0])
        >>> [round(rough[name].item(), 6) for name in ("range", "curvature_max", "sharpness")]
        [1.0, 2.0, 1.0]
    """
    plane = ("alpha", "beta")
    if "loss" not in surface or not set(plane) <= set(surface["loss"].dims):
        raise ValueError("`surface`: expected a variable `loss` over `alpha` and `beta`")
    if min(surface.sizes[d] for d in plane) < 3:
        raise ValueError(f"`surface`: expected 3 x 3 points or more, got {dict(surface.sizes)}")

    distances = _check_radii(radii)

    loss = surface["loss"].transpose(..., *plane)
    other_dims = loss.dims[:-2]
    alphas, betas = (surface[d].values for d in plane)
    z = np.where(np.isfinite(loss.values), loss.values, np.nan)

    with np.errstate(invalid="ignore", divide="ignore"):
        statistics = (
            _spread_and_slopes(z, alphas, betas) | _curvature(z, alphas, betas) | _resolution(z)
        )
    statistics["n_non_finite"] = ("points without a finite loss", np.isnan(z).sum((-2, -1)))
    variables: dict[str, Any] = {
        name: (other_dims, np.asarray(value, dtype=float), {"long_name": long_name})
        for name, (long_name, value) in statistics.items()
    }

    sharpness = np.stack([_sharpness(z, alphas, betas, radius) for radius in distances], axis=-1)
    variables["sharpness"] = (
        (*other_dims, "radius"),
        sharpness,
        {"long_name": "largest rise of the loss within the radius"},
    )

    # Coordinates of further dimensions, such as seeds, are kept.
    coordinates: dict[str, Any] = {
        str(name): c for name, c in surface.coords.items() if not set(c.dims) & set(plane)
    }
    coordinates["radius"] = (
        "radius",
        np.asarray(distances),
        {"long_name": "distance from (0, 0)"},
    )
    return xr.Dataset(
        variables,
        coords=coordinates,
        attrs=surface.attrs | provenance("landscape.smoothness"),
    )


def _check_radii(radii: Any) -> list[float]:
    is_sequence = isinstance(radii, Sequence | np.ndarray) and not isinstance(radii, str)
    if not is_sequence or not len(radii):
        raise ValueError(f"`radii`: expected one distance or more in a list, got {radii!r}")
    return [check_not_negative("radii", radius) for radius in radii]


def _spread_and_slopes(z: Array, a: Array, b: Array) -> dict[str, Statistic]:
    slopes = np.hypot(*np.gradient(z, a, b, axis=(-2, -1)))
    steps = np.hypot(*np.gradient(z, axis=(-2, -1)))

    # Sums over one axis of |difference|, integrated along the other by the trapezoidal rule.
    along_a = np.abs(np.diff(z, axis=-2)) * _trapezoid_widths(b)
    along_b = np.abs(np.diff(z, axis=-1)) * _trapezoid_widths(a)[:, None]
    variation = np.nansum(along_a, (-2, -1)) + np.nansum(along_b, (-2, -1))

    low, high = _extremes(z)
    return {
        "std": ("standard deviation of the loss", _over_plane(np.nanstd, z)),
        "range": ("largest minus smallest loss", high - low),
        "mean_grad": ("mean gradient length per unit of distance", _over_plane(np.nanmean, slopes)),
        "mean_grad_per_step": (
            "mean gradient length per grid step",
            _over_plane(np.nanmean, steps),
        ),
        "total_variation": ("total variation of the loss", variation),
    }


def _curvature(z: Array, a: Array, b: Array) -> dict[str, Statistic]:
    """Eigenvalues of the 2 x 2 Hessian from central differences, at inner points."""
    a_step = np.diff(a).mean()
    b_step = np.diff(b).mean()
    inner = z[..., 1:-1, 1:-1]
    aa = (z[..., 2:, 1:-1] - 2 * inner + z[..., :-2, 1:-1]) / a_step**2
    bb = (z[..., 1:-1, 2:] - 2 * inner + z[..., 1:-1, :-2]) / b_step**2
    corners = z[..., 2:, 2:] - z[..., 2:, :-2] - z[..., :-2, 2:] + z[..., :-2, :-2]
    ab = corners / (4 * a_step * b_step)

    # The eigenvalues of [[aa, ab], [ab, bb]] are middle -+ radius.
    middle = (aa + bb) / 2
    radius = np.hypot((aa - bb) / 2, ab)
    lowest, _ = _extremes(middle - radius)
    _, highest = _extremes(middle + radius)
    is_convex = np.where(np.isnan(middle), np.nan, middle - radius >= 0)

    return {
        "curvature_min": ("smallest eigenvalue of the in-plane Hessian", lowest),
        "curvature_max": ("largest eigenvalue of the in-plane Hessian", highest),
        "convex_share": (
            "share of points where the plane is convex",
            _over_plane(np.nanmean, is_convex),
        ),
    }


def _resolution(z: Array) -> dict[str, Statistic]:
    """Correlation of the slope of each step with that of the next, along both axes together."""
    products = np.zeros(z.shape[:-2])
    squares = np.zeros((2, *z.shape[:-2]))

    for axis in (-2, -1):
        slopes = np.moveaxis(np.diff(z, axis=axis), axis, -1)
        slopes_before = slopes[..., :-1]
        slopes_after = slopes[..., 1:]

        # Pairs with a value that is not finite do not count.
        is_finite = np.isfinite(slopes_before + slopes_after)
        slopes_before = np.where(is_finite, slopes_before, 0)
        slopes_after = np.where(is_finite, slopes_after, 0)

        products += (slopes_before * slopes_after).sum((-2, -1))
        squares += (slopes_before**2).sum((-2, -1)), (slopes_after**2).sum((-2, -1))

    correlation = products / np.sqrt(squares.prod(0))
    is_under_resolved = np.where(np.isnan(correlation), np.nan, correlation < _RESOLVED)
    return {
        "slope_correlation": ("correlation of neighbouring slopes", correlation),
        "under_resolved": ("1 if the grid is too coarse for the surface", is_under_resolved),
    }


def _sharpness(z: Array, a: Array, b: Array, radius: float) -> Array:
    i = np.abs(a).argmin()
    j = np.abs(b).argmin()
    if a[i] != 0 or b[j] != 0:
        return np.full(z.shape[:-2], np.nan)

    # A hair more than the radius: axes are rounded.
    is_inside = np.hypot(*np.meshgrid(a, b, indexing="ij")) <= radius * (1 + 1e-9)
    _, highest = _extremes(z[..., is_inside][..., None])
    return highest - z[..., i, j]


def _trapezoid_widths(axis: Array) -> Array:
    """Weights of the trapezoidal rule."""
    steps = np.diff(axis)
    return np.append(steps, 0) / 2 + np.insert(steps, 0, 0) / 2


def _extremes(z: Array) -> tuple[Array, Array]:
    """Smallest and largest value over the plane; NaN, without a warning, where there is none."""
    is_empty = np.isnan(z).all((-2, -1))
    low = np.where(is_empty, np.nan, np.nanmin(np.where(np.isnan(z), np.inf, z), (-2, -1)))
    high = np.where(is_empty, np.nan, np.nanmax(np.where(np.isnan(z), -np.inf, z), (-2, -1)))
    return low, high


def _over_plane(statistic: Any, z: Array) -> Array:
    """A nan-aware statistic over the plane; NaN, without a warning, where nothing is known."""
    is_empty = np.asarray(np.isnan(z).all((-2, -1)))
    filled = np.where(is_empty[..., None, None], 0.0, z)
    return np.where(is_empty, np.nan, statistic(filled, axis=(-2, -1)))
