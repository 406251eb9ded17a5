from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import nn

from nudging._credits.credit import Credit, check_credit
from nudging._credits.saving import add_credit
from nudging._measures.batches import Request, measure_batches
from nudging._measures.loss_changes import (
    LossChanges,
    Normalisation,
    check_etas,
    check_normalisation,
)
from resonance_toolkit import AtMost, Loss


def nudge(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str] | None = None,
    *,
    eta: float | Sequence[float] = 0.01,
    normalisation: Normalisation = "rms",
    loss: Loss | None = None,
    samples: int | None = AtMost(1024),
    batch_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    first_order: bool = True,
    keep_samples: bool = False,
) -> xr.Dataset:
    """Move each block's output a little against its credit: does the loss fall?

    One block at a time, the output `h` of every sample becomes `h - eta * a / RMS(a)`, with the
    credit `a` that points like the loss gradient. A negative change is a useful credit. Blocks
    before the nudged one are not computed again, so L blocks cost about (L + 1) / 2 forward passes
    and one more; the attribute `passes` says if a model needed full ones instead. The model runs
    in eval mode, and neither the size of the batches nor other samples have a say.

    Args:
        model: Called as its inputs ask for (`call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches, as `resonance_toolkit.take` understands them.
        credit: Maps a `State` to one tensor per block, like its output; such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or list
            whose first tensor is meant; by default those of `resonance_toolkit.find_blocks`.
        eta: Length of the step, or several.
        normalisation: What the credit of a sample is divided by: `"rms"` its root mean square over
            features, `"unit"` its norm, or `"none"`.
        loss: `(outputs, targets)` to one loss per sample; by default the one that the targets ask
            for (`resonance_toolkit.default_loss`); samples whose targets are all -100 are left out.
            Means of torch are taken over each sample alone; with class weights, such that the mean
            over all samples is torch's own of all of them in one batch.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples at a time.
        seed: Determines which samples.
        dtype: Measure in a copy of the model of this precision; in its own by default, where
            changes of half a percent drown in the rounding of half precision. Credits see the
            model itself.
        first_order: Also predict the change from the gradient, which costs a backward pass.
        keep_samples: Also keep the change of every sample.

    Returns:
        Dataset with `loss_change (layer, eta)`, the mean over samples; its standard error
        `loss_change_se`; `predicted_change (layer, eta)`, to first order; `loss`, the mean at rest;
        `zero_credits (layer)`, samples without any credit, which stay where they are (a block
        where all do gives NaN); and `sample_change (layer, eta, sample)` on request.

    Raises:
        ValueError: If an argument does not fit, or the credit is missing, misshapen or not finite.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model = nn.Sequential(nn.Identity())
        >>> x, y = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
        >>> half_square = lambda out, y: (out - y).square().sum(1) / 2  # gradient: out - y
        >>> result = nudge(
        ...     model, (x, y), backprop(), "0", eta=0.1, loss=half_square, samples=1,
        ...     normalisation="unit",
        ... )  # from length 5 to 4.9
        >>> result["loss_change"].values.round(4), result["predicted_change"].values.round(4)
        (array([[-0.495]]), array([[-0.5]]))
    """
    check_credit(credit)
    etas = check_etas(eta)
    check_normalisation(normalisation)
    changes = LossChanges(etas, normalisation, first_order, keep_samples)

    request = Request(
        verb="nudging.nudge",
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
    values, block_names, attributes = measure_batches(request, {"changes": changes.measure_batch})

    result = changes.make_dataset(values["changes"], block_names)
    return add_credit(result.assign_attrs(attributes), credit)
