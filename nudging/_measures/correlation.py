from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import nn

from nudging._credits.credit import Credit, check_credit
from nudging._credits.saving import add_credit
from nudging._measures.batches import Request, measure_batches
from nudging._measures.loss_correlation import LossCorrelation
from resonance_toolkit import AtMost, Loss, check_positive, check_whole


def correlation(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str] | None = None,
    *,
    epsilon: float = 1e-3,
    n_directions: int = 32,
    loss: Loss | None = None,
    samples: int | None = AtMost(1024),
    batch_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = torch.float64,
) -> xr.Dataset:
    """Correlate the changes of the loss that a credit predicts with the true ones.

    The output of a block moves by `epsilon * v` along random unit vectors `v`, for each sample. The
    credit `a` predicts a change of `epsilon * <a, v>`. Credits are not normalised, so the relative
    size of the credits of different samples matters.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        credit: A function from a `State` to one tensor per block, of the shape of the block's
            output, such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        epsilon: Length of a step.
        n_directions: Random directions per sample and block.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples per batch.
        seed: Determines samples and directions. The directions of a sample do not depend on the
            batch that it is in.
        dtype: The precision of the copy of the model that is perturbed; None means the model
            itself. In single precision, such small changes of the loss are lost in rounding errors.

    Returns:
        Dataset with `correlation (layer)`: Pearson's over all pairs of sample and direction, NaN
        where either side does not vary; and `correlation_se`, by the jackknife over samples.

    Raises:
        ValueError: If an argument does not fit, or a credit is missing, not finite, or has another
            shape than the block's output.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model, y = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.tensor([0, 1])
        >>> result = correlation(model, (torch.eye(2), y), backprop(), "*", samples=2)
        >>> result["correlation"].values.round(2)
        array([1., 1.])
    """
    check_credit(credit)
    epsilon = check_positive("epsilon", epsilon)
    n_directions = check_whole("n_directions", n_directions)
    predictions = LossCorrelation(epsilon, n_directions, seed)

    request = Request(
        verb="nudging.correlation",
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
    measures = {"predictions": predictions.measure_batch}
    values, block_names, attributes = measure_batches(request, measures)

    result = predictions.make_dataset(values["predictions"], block_names)
    return add_credit(result.assign_attrs(attributes), credit)
