from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._credits.saved_credit import with_credit
from nudging._measures.batches import Credit, Observed, check_credit, check_positive, observing
from nudging._measures.numbers import (
    Array,
    attributes,
    dataset,
    inner,
    joined,
    layers,
    normalised,
    norms,
    standard_error,
)
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost


def alignment(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str],
    *,
    floor: float = 1e-7,
    loss: Loss | None = None,
    samples: int | None = AtMost(1024),
    batch_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> xr.Dataset:
    """Compare the credit of each block with the gradient of the loss, sample by sample.

    The cosine is not clamped: norms are not kept above any number. Where the gradient of the mean
    loss is below `floor`, it is too small to be a reference; the cosine there is NaN, `valid` is
    false and the attribute `invalid` has the numbers. That gradient has the 1/N of the mean over
    the samples drawn, so the floor means something only with N beside it: `grad_norm` is without.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        credit: Maps a `State` to one tensor per block, like its output.
        blocks: Names or patterns of modules that return one tensor, samples first.
        floor: The smallest norm of the gradient of the mean loss that a cosine is taken with.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples at a time.
        seed: Decides which samples.
        dtype: Differentiate a copy of the model of this precision; the model itself by default.

    Returns:
        Dataset over `layer` with `cosine`, the mean over samples with a credit and a gradient;
        `cosine_sd` and `cosine_se`, standard deviation over samples and error of the mean;
        medians over samples of norms: `grad_norm` (gradient of a sample's loss),
        `mean_loss_grad_norm` (the same over N), `hidden_norm`, `credit_norm`; and `valid`.

    Raises:
        ValueError: If an argument does not fit, or the credit is missing, misshapen or not finite.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model, y = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.tensor([0, 1])
        >>> found = alignment(model, (torch.eye(2), y), backprop, "*", samples=2)
        >>> found["cosine"].values.round(5)
        array([1., 1.])
    """
    check_credit(credit)
    floor = check_positive("floor", floor)
    with observing(
        model, data, blocks, credit, loss=loss, samples=samples, batch_size=batch_size, seed=seed,
        dtype=dtype, label="alignment",
    ) as batches:  # fmt: skip
        parts = []
        for seen in batches:
            parts.append(alignment_batch(seen))
            last = seen
    values = joined(parts)
    attrs = attributes(
        "nudging.alignment", model, credit, last, seed=seed, n_samples=values["grad"].shape[-1]
    )
    return with_credit(alignment_dataset(values, last, floor, attrs), credit)


def alignment_batch(seen: Observed) -> dict[str, Tensor]:
    """Norms and cosines, `(layer, sample)`."""
    gradient = seen.state.gradient()
    grad, credit = norms(gradient), norms(seen.credit)
    cosine = inner(_unit(gradient), _unit(seen.credit))
    return {
        "cosine": cosine.where((grad > 0) & (credit > 0), torch.nan),
        "grad": grad,
        "credit": credit,
        "hidden": norms(seen.state.hidden),
    }


def alignment_dataset(
    values: dict[str, Array], seen: Observed, floor: float, attrs: dict[str, str | int | float]
) -> xr.Dataset:
    """Means and medians over samples; no cosine with a reference below the floor."""
    names, about = layers(seen)
    medians = {name: np.median(values[name], -1) for name in ("grad", "hidden", "credit")}
    of_mean = medians["grad"] / values["grad"].shape[-1]
    valid = of_mean >= floor
    cosine = np.where(valid[:, None], values["cosine"], np.nan)
    mean, sd, se = (np.array([f(row[~np.isnan(row)]) for row in cosine]) for f in _MOMENTS)
    below = [
        f"{name}: gradient norm {norm:.2g} of the mean loss is "
        f"{'no number' if np.isnan(norm) else f'below {floor:g}'}"
        for name, norm, ok in zip(names, of_mean, valid, strict=True)
        if not ok
    ]
    variables: dict[str, tuple[Any, Any, str]] = {
        "cosine": ("layer", mean, "cosine of credit and loss gradient"),
        "cosine_sd": ("layer", sd, "standard deviation of the cosine over samples"),
        "cosine_se": ("layer", se, "standard error of the mean cosine over samples"),
        "grad_norm": ("layer", medians["grad"], "median norm of a sample's loss gradient"),
        "mean_loss_grad_norm": ("layer", of_mean, "median norm of the mean loss's gradient"),
        "hidden_norm": ("layer", medians["hidden"], "median norm of the block's output"),
        "credit_norm": ("layer", medians["credit"], "median norm of the credit"),
        "valid": ("layer", valid, "the gradient is large enough to compare with"),
    }
    extra: dict[str, str | int | float] = {"floor": floor, "invalid": "; ".join(below) or "none"}
    return dataset(variables, {"layer": (names, about)}, attrs | extra)


_MOMENTS = (
    lambda row: row.mean() if row.size else np.nan,
    lambda row: row.std(ddof=1) if row.size > 1 else np.nan,
    standard_error,
)


def _unit(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: normalised(value, "unit") for name, value in values.items()}
