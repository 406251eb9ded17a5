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
    """Move each block's output a little against its credit, and measure whether the loss falls.

    For one block at a time, the output `h` of every sample becomes `h - eta * a / RMS(a)`, where
    `a` is the credit, which is meant to point like the gradient of the loss. If the change of the
    loss is negative, the credit is useful. Blocks before the nudged one are not computed again, so
    L blocks cost about (L + 1) / 2 forward passes and one more. The attribute `passes` says whether
    a model needed full passes instead. The model runs in eval mode, and the result does not depend
    on how samples are batched.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        credit: A function from a `State` to one tensor per block, of the shape of the block's
            output, such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        eta: Length of the step, or several lengths.
        normalisation: What the credit of a sample is divided by: `"rms"` its root mean square over
            features, `"unit"` its norm, or `"none"`.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples per batch.
        seed: Determines which samples are drawn.
        dtype: Measure in a copy of the model of this precision; by default in the model's own. In
            half precision, changes of half a percent are lost in rounding errors. Credits are
            always computed on the model itself.
        first_order: Also predict the change from the gradient, at the cost of a backward pass.
        keep_samples: Also return the change of every sample.

    Returns:
        Dataset with `loss_change (layer, eta)`, the mean over samples; its standard error
        `loss_change_se`; `predicted_change (layer, eta)`, to first order; `loss`, the mean without
        a nudge; `zero_credits (layer)`, the number of samples whose credit is zero, which do not
        move (if that is all samples, the block has NaN); and with `keep_samples`, `sample_change
        (layer, eta, sample)`.

    Raises:
        ValueError: If an argument does not fit, or a credit is missing, not finite, or has another
            shape than the block's output.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model = nn.Sequential(nn.Identity())
        >>> x, y = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
        >>> half_square = lambda out, y: (out - y).square().sum(1) / 2  # gradient: out - y
        >>> result = nudge(
        ...     model, (x, y), backprop(), "0", eta=0.1, loss=half_square, samples=1,
        ...     normalisation="unit",
        ... )  # from norm 5 to 4.9
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
