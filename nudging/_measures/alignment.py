from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import nn

from nudging._credits.credit import Credit, check_credit
from nudging._credits.saving import add_credit
from nudging._measures.batches import Request, measure_batches
from nudging._measures.gradient_cosine import GradientCosine
from resonance_toolkit import AtMost, Loss, check_positive


def alignment(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str] | None = None,
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
    the samples drawn, so the floor means something only with N beside it: `gradient_norm` is
    without.

    Args:
        model: Called as its inputs ask for (`call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches, as `resonance_toolkit.take` understands them.
        credit: Maps a `State` to one tensor per block, like its output; such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or list
            whose first tensor is meant; by default those of `resonance_toolkit.find_blocks`.
        floor: The smallest norm of the gradient of the mean loss that a cosine is taken with.
        loss: `(outputs, targets)` to one loss per sample; by default the one that the targets ask
            for (`resonance_toolkit.default_loss`); samples whose targets are all -100 are left out.
            Means of torch are taken over each sample alone; with class weights, such that the mean
            over all samples is torch's own of all of them in one batch.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples at a time.
        seed: Determines which samples.
        dtype: Differentiate a copy of the model of this precision; the model itself by default.

    Returns:
        Dataset over `layer` with `cosine`, the mean over samples with a credit and a gradient;
        `cosine_sd` and `cosine_se`, standard deviation over samples and error of the mean;
        medians over samples of norms: `gradient_norm` (gradient of a sample's loss),
        `mean_loss_gradient_norm` (the same over N), `hidden_norm`, `credit_norm`; and `valid`.

    Raises:
        ValueError: If an argument does not fit, or the credit is missing, misshapen or not finite.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model, y = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.tensor([0, 1])
        >>> result = alignment(model, (torch.eye(2), y), backprop(), "*", samples=2)
        >>> result["cosine"].values.round(5)
        array([1., 1.])
    """
    check_credit(credit)
    cosine = GradientCosine(check_positive("floor", floor))

    request = Request(
        verb="nudging.alignment",
        model=model,
        data=data,
        blocks=blocks,
        credit=credit,
        loss=loss,
        samples=samples,
        batch_size=batch_size,
        seed=seed,
        dtype=dtype,
    )
    values, block_names, attributes = measure_batches(request, {"cosine": cosine.measure_batch})

    result = cosine.make_dataset(values["cosine"], block_names)
    return add_credit(result.assign_attrs(attributes), credit)
