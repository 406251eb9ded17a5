from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import nn

from nudging._credits.saved_credit import with_credit
from nudging._measures.alignment import alignment_batch, alignment_dataset
from nudging._measures.batches import Credit, check_credit, check_positive, check_whole, observing
from nudging._measures.correlation import correlation_batch, correlation_dataset
from nudging._measures.nudge import check_etas, check_normalisation, nudge_batch, nudge_dataset
from nudging._measures.numbers import attributes, joined
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost


def measure(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str],
    *,
    eta: float | Sequence[float] = 0.01,
    normalisation: str = "rms",
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
    """Everything about a credit at once: `nudge`, `alignment` and `correlation`.

    All three see the same samples and the same credit, which is asked for once per batch.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        credit: Maps a `State` to one tensor per block, like its output.
        blocks: Names or patterns of modules that return one tensor, samples first.
        eta: As of `nudge`.
        normalisation: As of `nudge`.
        floor: As of `alignment`.
        epsilon: As of `correlation`.
        n_directions: As of `correlation`.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples at a time.
        seed: Decides samples and directions.
        dtype: Measure in a copy of the model of this precision; None means the model itself.
            Credits see the model itself.
        keep_samples: As of `nudge`.

    Returns:
        Dataset with the variables of all three, over one `layer` coordinate.

    Raises:
        ValueError: If an argument does not fit, or the credit is missing, misshapen or not finite.
        TypeError: If an argument is of the wrong kind.
    """
    check_credit(credit)
    etas, floor = check_etas(eta), check_positive("floor", floor)
    epsilon = check_positive("epsilon", epsilon)
    check_normalisation(normalisation)
    check_whole("n_directions", n_directions, 1)
    with observing(
        model, data, blocks, credit, loss=loss, samples=samples, batch_size=batch_size, seed=seed,
        dtype=dtype, label="measure",
    ) as batches:  # fmt: skip
        nudged, aligned, correlated = [], [], []
        for seen in batches:
            nudged.append(nudge_batch(seen, etas, normalisation, first_order=True))
            aligned.append(alignment_batch(seen))
            correlated.append(correlation_batch(seen, epsilon, n_directions, seed))
            last = seen
    changes = joined(nudged)
    attrs = attributes(
        "nudging.measure", model, credit, last, normalisation=normalisation, epsilon=epsilon,
        n_directions=n_directions, seed=seed, n_samples=changes["loss"].shape[-1],
    )  # fmt: skip
    directions = alignment_dataset(joined(aligned), last, floor, attrs)
    found = xr.merge(
        [
            nudge_dataset(changes, last, etas, keep_samples, attrs),
            directions,
            correlation_dataset(joined(correlated), last, attrs),
        ],
        join="exact",
        combine_attrs="override",
    )
    return with_credit(found.assign_attrs(directions.attrs), credit)
