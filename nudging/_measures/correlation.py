from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._credits.saved_credit import with_credit
from nudging._measures.batches import (
    Credit,
    Observed,
    check_credit,
    check_positive,
    check_whole,
    observing,
)
from nudging._replay.draws import draws
from nudging._measures.numbers import Array, attributes, dataset, joined, layers
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost


def correlation(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str],
    *,
    epsilon: float = 1e-3,
    n_directions: int = 32,
    loss: Loss | None = None,
    samples: int | None = AtMost(1024),
    batch_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = torch.float64,
) -> xr.Dataset:
    """Correlate the loss change that a credit predicts with the true one, in random directions.

    Each sample's block output moves by `epsilon * v` along random unit vectors `v`; predicted is
    `epsilon * <a, v>`. Credits are not normalised: that one sample has more than another counts.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        credit: Maps a `State` to one tensor per block, like its output.
        blocks: Names or patterns of modules that return one tensor, samples first.
        epsilon: Length of a step.
        n_directions: Random directions per sample and block.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples at a time.
        seed: Decides samples and directions, which belong to the samples and not to batches.
        dtype: The precision of the copy of the model that is perturbed; None means the model
            itself. In single precision such small changes of the loss drown in rounding.

    Returns:
        Dataset with `correlation (layer)`: Pearson's over all pairs of sample and direction, NaN
        where either side does not vary; and `correlation_se`, by the jackknife over samples.

    Raises:
        ValueError: If an argument does not fit, or the credit is missing, misshapen or not finite.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model, y = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.tensor([0, 1])
        >>> found = correlation(model, (torch.eye(2), y), backprop, "*", samples=2)
        >>> found["correlation"].values.round(2)
        array([1., 1.])
    """
    check_credit(credit)
    epsilon = check_positive("epsilon", epsilon)
    check_whole("n_directions", n_directions, 1)
    with observing(
        model, data, blocks, credit, loss=loss, samples=samples, batch_size=batch_size, seed=seed,
        dtype=dtype, label="correlation",
    ) as batches:  # fmt: skip
        parts = []
        for seen in batches:
            parts.append(correlation_batch(seen, epsilon, n_directions, seed))
            last = seen
    values = joined(parts)
    attrs = attributes(
        "nudging.correlation", model, credit, last, seed=seed, n_samples=values["true"].shape[-1]
    )
    found = correlation_dataset(values, last, attrs | _settings(epsilon, n_directions))
    return with_credit(found, credit)


@torch.no_grad()
def correlation_batch(
    seen: Observed, epsilon: float, n_directions: int, seed: int
) -> dict[str, Tensor]:
    """Predicted and true changes, `(layer, direction, sample)`."""
    state = seen.state
    rest = state.losses().double()
    predicted, true = [], []
    for name, hidden in state.hidden.items():
        for drawn in islice(draws(state, name, seed), n_directions):
            rows = drawn.flatten(1)
            step = epsilon * (rows / rows.norm(dim=1, keepdim=True)).reshape(drawn.shape)
            moved = state.losses(state.rest(name, hidden + step)).double()
            predicted.append((seen.credit[name] * step.double()).flatten(1).sum(1).cpu())
            true.append(moved - rest)
    shape = (len(state.blocks), n_directions, len(state))
    return {
        "predicted": torch.stack(predicted).reshape(shape),
        "true": torch.stack(true).reshape(shape),
    }


def correlation_dataset(
    values: dict[str, Array], seen: Observed, attrs: dict[str, str | int | float]
) -> xr.Dataset:
    """Pearson's correlation of each block."""
    pairs = [_pearson(p, t) for p, t in zip(values["predicted"], values["true"], strict=True)]
    rho, se = np.array(pairs).T
    about = "correlation of predicted and true loss changes"
    return dataset(
        {
            "correlation": ("layer", rho, about),
            "correlation_se": ("layer", se, "standard error of the correlation over samples"),
        },
        {"layer": layers(seen)},
        attrs,
    )


def _settings(epsilon: float, n_directions: int) -> dict[str, str | int | float]:
    return {"epsilon": epsilon, "n_directions": n_directions}


def _pearson(predicted: Array, true: Array) -> tuple[float, float]:
    """The correlation, and its jackknife error over the samples (the last axis)."""
    p, t = (v / max(np.abs(v).max(), np.finfo(float).tiny) for v in (predicted, true))
    p, t = p - p.mean(), t - t.mean()
    moments = np.array([v.sum(0) for v in (p, t, p * p, t * t, p * t)])  # of each sample
    total, (size, count) = moments.sum(1, keepdims=True), p.shape
    rho = float(_from_moments(total, size * count)[0])
    if count < 2:
        return rho, float("nan")
    without = _from_moments(total - moments, size * (count - 1))
    return rho, float(np.sqrt((count - 1) * np.mean((without - without.mean()) ** 2)))


def _from_moments(moments: Array, size: int) -> Array:
    p, t, pp, tt, pt = moments / size
    squares = (pp - p * p, tt - t * t)
    varies = (squares[0] > 1e-24) & (squares[1] > 1e-24)
    scale = np.sqrt(np.where(varies, squares[0] * squares[1], 1.0))
    return np.where(varies, (pt - p * t) / scale, np.nan)
