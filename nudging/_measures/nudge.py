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
    standard_error,
)
from nudging._replay.losses import Loss
from resonance_toolkit import AtMost

_NORMALISATIONS = ("rms", "unit", "none")


def nudge(
    model: nn.Module,
    data: Any,
    credit: Credit,
    blocks: str | Sequence[str],
    *,
    eta: float | Sequence[float] = 0.01,
    normalisation: str = "rms",
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
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        credit: Maps a `State` to one tensor per block, like its output.
        blocks: Names or patterns of modules that return one tensor, samples first.
        eta: Length of the step, or several.
        normalisation: What the credit of a sample is divided by: `"rms"` its root mean square over
            features, `"unit"` its norm, or `"none"`.
        loss: `(outputs, targets)` to one loss per sample; cross-entropy by default.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples at a time.
        seed: Decides which samples.
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
        >>> found = nudge(model, (x, y), backprop, "0", eta=0.1, loss=half_square, samples=1,
        ...               normalisation="unit")  # from length 5 to 4.9
        >>> found["loss_change"].values.round(4), found["predicted_change"].values.round(4)
        (array([[-0.495]]), array([[-0.5]]))
    """
    check_credit(credit)
    etas = check_etas(eta)
    check_normalisation(normalisation)
    with observing(
        model, data, blocks, credit, loss=loss, samples=samples, batch_size=batch_size, seed=seed,
        dtype=dtype, label="nudge",
    ) as batches:  # fmt: skip
        parts = []
        for seen in batches:
            parts.append(nudge_batch(seen, etas, normalisation, first_order))
            last = seen
    values = joined(parts)
    attrs = attributes(
        "nudging.nudge", model, credit, last, normalisation=normalisation, seed=seed,
        n_samples=values["loss"].shape[-1],
    )  # fmt: skip
    return with_credit(nudge_dataset(values, last, etas, keep_samples, attrs), credit)


@torch.no_grad()
def nudge_batch(
    seen: Observed, etas: Sequence[float], normalisation: str, first_order: bool
) -> dict[str, Tensor]:
    """Changes of the loss, `(layer, eta, sample)`, and what belongs to them."""
    state = seen.state
    steps = {n: _step(a, normalisation).to(state.hidden[n]) for n, a in seen.credit.items()}
    rest = state.losses().double()

    def change(name: str, eta: float) -> Tensor:
        moved = state.rest(name, state.hidden[name] - eta * steps[name])
        return state.losses(moved).double() - rest

    changes = torch.stack([torch.stack([change(n, e) for e in etas]) for n in state.blocks])
    still = torch.stack([(a.flatten(1) == 0).all(1).cpu() for a in seen.credit.values()])
    found = {"change": changes, "still": still, "loss": rest}
    if first_order:
        slopes = inner(state.gradient(), steps)
        found["predicted"] = -slopes[:, None] * slopes.new_tensor(etas)[:, None]
    return found


def nudge_dataset(
    values: dict[str, Array],
    seen: Observed,
    etas: list[float],
    keep_samples: bool,
    attrs: dict[str, str | int | float],
) -> xr.Dataset:
    """Means over samples, and their standard errors."""
    still = values["still"]
    # Where no sample has a credit, there was no nudge.
    nowhere = np.where(still.all(-1), np.nan, 0.0)[:, None]
    axes = ("layer", "eta")
    variables: dict[str, tuple[Any, Any, str]] = {
        "loss_change": (axes, values["change"].mean(-1) + nowhere, "mean change of the loss"),
        "loss_change_se": (
            axes,
            standard_error(values["change"]) + nowhere,
            "standard error of the mean change over samples",
        ),
        "zero_credits": ("layer", still.sum(-1), "samples without credit, which stay"),
        "loss": ((), values["loss"].mean(), "mean loss at rest"),
    }
    if "predicted" in values:
        predicted = values["predicted"].mean(-1) + nowhere
        variables["predicted_change"] = (axes, predicted, "change of the loss to first order")
    coords: dict[str, tuple[Any, str]] = {"layer": layers(seen), "eta": (etas, "step length")}
    if keep_samples:
        text = "change of the loss of each sample"
        variables["sample_change"] = ((*axes, "sample"), values["change"], text)
        coords["sample"] = (np.arange(values["loss"].size), "item of the samples drawn")
    return dataset(variables, coords, attrs)


def check_etas(eta: float | Sequence[float]) -> list[float]:
    """One or more positive numbers, all different."""
    given = list(eta) if isinstance(eta, Sequence | np.ndarray) else [eta]
    etas = [check_positive("eta", e.item() if isinstance(e, np.generic) else e) for e in given]
    if not etas or len(set(etas)) < len(etas):
        raise ValueError(f"`eta`: expected one or more different numbers, got {eta!r}")
    return etas


def check_normalisation(normalisation: str) -> None:
    """Refuse what is none of the three."""
    if normalisation not in _NORMALISATIONS:
        raise ValueError(
            f"`normalisation`: expected {' | '.join(_NORMALISATIONS)}, got {normalisation!r}"
        )


def _step(credit: Tensor, how: str) -> Tensor:
    return credit if how == "none" else normalised(credit, how)
