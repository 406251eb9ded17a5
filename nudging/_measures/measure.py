from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import nn

from nudging._credits.credit import Credit, check_credit
from nudging._credits.saving import add_credit
from nudging._measures.batches import Request, measure_batches
from nudging._measures.gradient_cosine import GradientCosine
from nudging._measures.loss_changes import (
    LossChanges,
    Normalisation,
    check_etas,
    check_normalisation,
)
from nudging._measures.loss_correlation import LossCorrelation
from resonance_toolkit import AtMost, Loss, check_positive, check_whole


def measure(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str] | None = None,
    *,
    eta: float | Sequence[float] = 0.01,
    normalisation: Normalisation = "rms",
    floor: float = 1e-7,
    epsilon: float = 1e-3,
    n_directions: int = 32,
    loss: Loss | None = None,
    samples: int | None = AtMost(1024),
    batch_size: int = 256,
    seed: int = 0,
    dtype: torch.dtype | None = torch.float64,
    keep_samples: bool = False,
) -> xr.Dataset:
    """Measure a credit by `nudge`, `alignment` and `correlation` at once.

    All three use the same samples and the same credit, which is computed once per batch.

    Args:
        model: Any module, called in eval mode (see `call_model`); left as it was found.
        data: `(inputs, targets)` or a mapping with `labels`, a Dataset, a DataLoader or a list of
            batches; see `resonance_toolkit.take`.
        credit: A function from a `State` to one tensor per block, of the shape of the block's
            output, such as `backprop()`.
        blocks: Names or patterns of modules that return a tensor, samples first, or a tuple or
            list, of which the first tensor is used; by default those of
            `resonance_toolkit.find_blocks`.
        eta: Length of the step against the credit, or several lengths.
        normalisation: What the credit of a sample is divided by before that step: `"rms"` its root
            mean square over features, `"unit"` its norm, or `"none"`.
        floor: Below this norm of the gradient of the mean loss, the cosine is NaN.
        epsilon: Length of the random steps whose effect the credit predicts.
        n_directions: Random directions per sample and block.
        loss: A function of `(outputs, targets)` that returns one loss per sample, or a loss of
            torch; by default the one that the targets ask for (`resonance_toolkit.default_loss`).
            Samples whose targets are all -100 are left out. A mean of torch is taken over each
            sample by itself; class weights count as in one batch of all samples.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples per batch.
        seed: Determines samples and directions.
        dtype: Measure in a copy of the model of this precision; None means the model itself.
            Credits are always computed on the model itself.
        keep_samples: Also return the change of every sample.

    Returns:
        Dataset with the variables of all three, over one `layer` coordinate.

    Raises:
        ValueError: If an argument does not fit, or a credit is missing, not finite, or has another
            shape than the block's output.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> from nudging import backprop
        >>> model, y = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.tensor([0, 1])
        >>> result = measure(model, (torch.eye(2), y), backprop(), "*", samples=2)
        >>> result["cosine"].values.round(5), result["correlation"].values.round(2)
        (array([1., 1.]), array([1., 1.]))
    """
    check_credit(credit)
    etas = check_etas(eta)
    floor = check_positive("floor", floor)
    epsilon = check_positive("epsilon", epsilon)
    check_normalisation(normalisation)
    n_directions = check_whole("n_directions", n_directions)

    changes = LossChanges(etas, normalisation, first_order=True, keep_samples=keep_samples)
    cosine = GradientCosine(floor)
    predictions = LossCorrelation(epsilon, n_directions, seed)

    request = Request(
        verb="nudging.measure",
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
    values, block_names, attributes = measure_batches(
        request,
        {
            "changes": changes.measure_batch,
            "cosine": cosine.measure_batch,
            "predictions": predictions.measure_batch,
        },
    )

    # Exact, since all three come from the same samples and blocks.
    result = xr.merge(
        [
            changes.make_dataset(values["changes"], block_names),
            cosine.make_dataset(values["cosine"], block_names),
            predictions.make_dataset(values["predictions"], block_names),
        ],
        join="exact",
        combine_attrs="no_conflicts",
    )
    return add_credit(result.assign_attrs(attributes), credit)
