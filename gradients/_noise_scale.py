from typing import Any

import numpy as np
import xarray as xr

from gradients._checks import check_confidence, check_recorded
from gradients._rows import Array
from resonance_toolkit import check_whole, provenance

# Of the trace: what the gradients are of. Its settings (every, level) are not the noise's.
_KEPT_ATTRIBUTES = ("model", "n_parameters", "objectives")

_TEXTS = {
    "squared_norm": "squared norm of the true gradient",
    "noise": "variance of one sample's gradient, summed over parameters",
    "noise_scale": "gradient noise scale",
}


def noise_scale(
    trace: xr.Dataset,
    batch_size: int,
    *,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> xr.Dataset:
    """Estimate the batch size at which noise and gradient are equally large, by loss and layer.

    The gradient of a much smaller batch is mostly noise; that of a much larger batch is hardly
    better. The noise scale is `B_simple = S / |G|^2` of McCandlish et al. 2018 (arXiv 1812.06162,
    appendix A.1), where G is the gradient over all data, and S the trace of the covariance of the
    gradient of one sample. From an update with n micro-batches of b samples each, unbiased
    estimates are

        |G|^2 = (n b |G_update|^2 - b |G_micro|^2) / (n b - b)
        S = (|G_micro|^2 - |G_update|^2) / (1 / b - 1 / (n b))

    where `|G_micro|^2` is the mean over the micro-batches. Both are averaged over steps before one
    is divided by the other, because a mean of ratios would be biased. For a part of the training,
    select its steps first: `trace.sel(step=slice(1000, 2000))`.

    The micro-batches must have the same size and be drawn independently. With batch norm, or with a
    loss that compares the samples of a batch, micro-batches differ from updates in more than
    their size, and the formulas do not hold. If the losses of the micro-batches are summed instead
    of averaged, both estimates are larger by n^2, and their ratio is the same.

    Args:
        trace: From `Trace(model, noise=True)`, or a `regroup` of it.
        batch_size: Samples in one micro-batch of one process.
        resamples: Bootstrap samples, of steps.
        confidence: Confidence level of the intervals.
        seed: Determines the bootstrap.

    Returns:
        Dataset with `squared_norm`, `noise`, `noise_scale (objective, layer)`: `|G|^2`, S and their
        ratio, in samples; `squared_norm_total`, `noise_total`, `noise_scale_total (objective)` of
        all layers together; each with its interval in `..._low` and `..._high`, percentiles of the
        bootstrap over steps (too narrow with fewer than about ten steps, or if the noise of
        consecutive steps is correlated); `n_steps (objective, layer)`, the number of steps used.

        Values are NaN if no step had more than one micro-batch (or process), or if a loss does not
        reach the layer; an interval is NaN if only one step was used. A noise scale is infinite if
        `squared_norm` is not above zero: the gradient cannot be distinguished from noise, and only
        the lower end of the interval is informative.

    Raises:
        ValueError: If the trace was made without `noise=True`, or a setting is out of range.
        TypeError: If `trace` is not a Dataset.

    Examples:
        >>> import torch
        >>> from gradients import Trace
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> trace = Trace(model, noise=True)
        >>> trace.backward(model(torch.tensor([[1.0]])).sum() / 2, update=False)
        >>> trace.backward(model(torch.tensor([[3.0]])).sum() / 2)  # gradients 1 and 3
        >>> scale = noise_scale(trace.to_dataset(), batch_size=1)
        >>> scale["squared_norm"].item(), scale["noise"].item()  # 1 * 3, and their variance
        (3.0, 2.0)
        >>> scale["noise_scale"].round(3).item()
        0.667
    """
    check_recorded(trace)
    _check_noise(trace)
    batch_size = check_whole("batch_size", batch_size)
    resamples = check_whole("resamples", resamples)
    check_confidence(confidence)
    seed = check_whole("seed", seed, at_least=0)

    # One micro-batch tells nothing of the noise.
    n = trace["n_micro_batches"].where(trace["n_micro_batches"] > 1)
    dims = ("step", "objective", "layer")
    update_square = trace["squared_norm"].transpose(*dims)
    micro_square = trace["micro_batch_squared_norm"].transpose(*dims)

    # The formulas above, with B_small = b and B_big = n b.
    squared_norm = ((n * update_square - micro_square) / (n - 1)).transpose(*dims)
    noise = (batch_size * n * (micro_square - update_square) / (n - 1)).transpose(*dims)

    # Rounding aside, micro-batches are no shorter than their mean.
    noise = noise.clip(min=0)

    variables: dict[str, Any] = {}
    for suffix in ("", "_total"):
        pair = [squared_norm, noise]
        if suffix:
            pair = [part.sum("layer", skipna=True, min_count=1) for part in pair]
        columns = _estimate(pair[0].values, pair[1].values, resamples, confidence, seed)
        for name, numbers in columns.items():
            base, _, end = name.partition("/")
            description = {"long_name": _TEXTS[base] + (f", {end} end" if end else "")}
            if base == "noise_scale":
                description["units"] = "samples"
            key = base + suffix + {"lower": "_low", "upper": "_high", "": ""}[end]
            variables[key] = xr.Variable(pair[0].dims[1:], numbers, description)

    n_steps = squared_norm.notnull().sum("step").values
    variables["n_steps"] = xr.Variable(dims[1:], n_steps, {"long_name": "steps that count"})

    settings = {"resamples": resamples, "confidence": confidence, "seed": seed}
    attributes = {key: trace.attrs[key] for key in _KEPT_ATTRIBUTES if key in trace.attrs}
    attributes |= provenance("gradients.noise_scale", batch_size=batch_size, **settings)
    kept_dims = {"objective", "layer"}
    coords = {name: part for name, part in trace.coords.items() if kept_dims.issuperset(part.dims)}
    return xr.Dataset(variables, coords, attributes)


def _check_noise(trace: xr.Dataset) -> None:
    if "micro_batch_squared_norm" not in trace:
        raise ValueError(
            "`trace`: expected norms of micro-batches, got "
            f"{', '.join(map(str, trace.data_vars)) or 'no variable'}; record with "
            "Trace(model, noise=True), and several micro-batches (update=False) or processes"
        )
    missing_dims = [name for name in ("step", "objective", "layer") if name not in trace.dims]
    if missing_dims:
        name = missing_dims[0]
        raise ValueError(
            f"`trace`: expected dimensions step, objective and layer, got none called {name}; "
            f"choose by a list, which keeps it: trace.isel({name}=[0])"
        )


def _estimate(
    squared_norm: Array, noise: Array, resamples: int, confidence: float, seed: int
) -> dict[str, Array]:
    """Means over steps, their ratio, and intervals, of arrays `(step, ...)`."""
    n_steps, *shape = squared_norm.shape
    parts = np.stack([squared_norm, noise]).reshape(2, n_steps, -1)
    is_defined = np.isfinite(parts).all(0)
    parts = np.where(is_defined, parts, 0.0)

    # Each resample counts how often it has drawn each step; the same for all layers. The first
    # draws every step once: the estimate itself.
    generator = np.random.default_rng(seed)
    means = np.full((2, resamples + 1, parts.shape[2]), np.nan)
    counts = np.ones(n_steps)
    for index in range(resamples + 1):
        total_counts = counts @ is_defined
        sums = counts @ parts
        np.divide(sums, total_counts, out=means[:, index], where=total_counts > 0)
        picks = generator.integers(n_steps, size=n_steps)
        counts = np.bincount(picks, minlength=n_steps).astype(float)
    mean_squares, mean_noises = means

    scales = np.where(np.isnan(mean_squares), np.nan, np.inf)
    np.divide(mean_noises, mean_squares, out=scales, where=mean_squares > 0)
    scales[(mean_squares <= 0) & (mean_noises == 0)] = np.nan  # neither gradient nor noise

    columns: dict[str, Array] = {}
    has_interval = is_defined.sum(0) > 1
    for name, draws in (
        ("squared_norm", mean_squares),
        ("noise", mean_noises),
        ("noise_scale", scales),
    ):
        tails = _percentiles(draws[1:], confidence)
        columns[name] = draws[0].reshape(shape)
        columns[f"{name}/lower"] = np.where(has_interval, tails[0], np.nan).reshape(shape)
        columns[f"{name}/upper"] = np.where(has_interval, tails[1], np.nan).reshape(shape)
    return columns


def _percentiles(draws: Array, confidence: float) -> tuple[Array, Array]:
    """Ends of the intervals of `(resample, column)`: draws themselves, which may be infinite."""
    in_order = np.sort(draws, axis=0)  # NaN comes last
    n_last = np.maximum((~np.isnan(draws)).sum(0) - 1, 0)

    lower = np.floor((1 - confidence) / 2 * n_last).astype(int)
    upper = np.ceil((1 + confidence) / 2 * n_last).astype(int)
    columns = np.arange(draws.shape[1])
    return in_order[lower, columns], in_order[upper, columns]
