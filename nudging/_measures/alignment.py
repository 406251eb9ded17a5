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

    Norms are not clamped from below before they divide the inner product. If the norm of the
    gradient of the mean loss is below `floor`, the gradient is too small to be a reference: the
    cosine is NaN, `valid` is False, and the attribute `invalid` gives the numbers. The gradient of
    the mean loss contains a factor 1/N for N samples, so the floor is meaningful only together with
    N. `gradient_norm` does not contain this factor.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        credit: A function from a `State` to one tensor per block, of the shape of the block's
            output, such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        floor: Below this norm of the gradient of the mean loss, the cosine is NaN.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples per batch.
        seed: Determines which samples are drawn.
        dtype: Differentiate a copy of the model of this precision; the model itself by default.

    Returns:
        Dataset over `layer` with `cosine`, the mean over samples with a credit and a gradient;
        `cosine_sd` and `cosine_se`, the standard deviation over samples and the standard error of
        the mean; medians over samples of norms: `gradient_norm` (of the gradient of a sample's
        loss), `mean_loss_gradient_norm` (the same divided by N), `hidden_norm`, `credit_norm`; and
        `valid`.

    Raises:
        ValueError: If an argument does not fit, or a credit is missing, not finite, or has another
            shape than the block's output.
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
