"""What `nudge` and `measure` share: how the loss changes when a block is nudged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from nudging._measures.batches import ObservedBatch
from nudging._measures.numbers import (
    Array,
    inner_products,
    layer_coordinate,
    make_dataset,
    normalise,
    stack_blocks,
    standard_error,
    subtract_losses,
)
from resonance_toolkit import check_choice, check_positive

Normalisation: TypeAlias = Literal["rms", "unit", "none"]


@dataclass(frozen=True)
class LossChanges:
    """Changes of the loss after steps of several lengths.

    Attributes:
        etas: Lengths of the step.
        normalisation: What each sample's credit is divided by.
        first_order: Whether to predict the changes from the gradient, too.
        keep_samples: Whether the Dataset has the change of every sample.
    """

    etas: Sequence[float]
    normalisation: Normalisation
    first_order: bool = True
    keep_samples: bool = False

    @torch.no_grad()
    def measure_batch(self, batch: ObservedBatch) -> dict[str, Tensor]:
        """Return changes of the loss, `(layer, eta, sample)`, and what belongs to them."""
        state = batch.state

        losses_before = state.losses()
        steps = {
            name: self._normalise(credit, state.positions(name)).to(state.hidden[name])
            for name, credit in batch.credit.items()
        }

        changes = []
        for name in state.blocks:
            for eta in self.etas:
                outputs = state.replay(name, state.hidden[name] - eta * steps[name])
                changes.append(subtract_losses(state.losses(outputs), losses_before))
        shape = (len(state.blocks), len(self.etas), len(state))

        without_credit = [(credit.flatten(1) == 0).all(1) for credit in batch.credit.values()]
        values = {
            "change": torch.stack(changes).reshape(shape),
            "has_no_credit": stack_blocks(without_credit),
            "loss": losses_before,
        }
        if self.first_order:
            # To first order, L(h - eta * s) - L(h) = -eta * <g, s>.
            slopes = inner_products(state.gradient(), steps)
            values["predicted"] = torch.stack([-slopes * eta for eta in self.etas], dim=1)
        return values

    def make_dataset(self, values: Mapping[str, Array], blocks: Sequence[str]) -> xr.Dataset:
        """Return means over samples, and their standard errors."""
        has_no_credit = values["has_no_credit"]
        # Where no sample has a credit, there was no nudge, and adding this makes a mean NaN.
        nan_if_none = np.where(has_no_credit.all(-1), np.nan, 0.0)[:, None]

        axes = ("layer", "eta")
        mean_change = values["change"].mean(-1) + nan_if_none
        error = standard_error(values["change"]) + nan_if_none
        variables: dict[str, tuple[Any, Any, str]] = {
            "loss_change": (axes, mean_change, "mean change of the loss"),
            "loss_change_se": (axes, error, "standard error of the mean change over samples"),
            "zero_credits": ("layer", has_no_credit.sum(-1), "samples without credit, which stay"),
            "loss": ((), values["loss"].mean(), "mean loss at rest"),
        }
        coordinates: dict[str, tuple[Any, str]] = {
            "layer": layer_coordinate(blocks),
            "eta": (list(self.etas), "step length"),
        }

        if self.first_order:
            predicted = values["predicted"].mean(-1) + nan_if_none
            variables["predicted_change"] = (axes, predicted, "change of the loss to first order")
        if self.keep_samples:
            sample_axes = (*axes, "sample")
            long_name = "change of the loss of each sample"
            variables["sample_change"] = (sample_axes, values["change"], long_name)
            coordinates["sample"] = (np.arange(values["loss"].size), "item of the samples drawn")
        return make_dataset(variables, coordinates, {"normalisation": self.normalisation})

    def _normalise(self, credit: Tensor, positions: Tensor | None) -> Tensor:
        if self.normalisation == "none":
            return credit
        return normalise(credit, self.normalisation, positions)


def check_etas(eta: float | Sequence[float]) -> list[float]:
    """Return one or more positive numbers, all different."""
    if isinstance(eta, np.ndarray):
        numbers = eta.ravel().tolist()
    else:
        numbers = list(eta) if isinstance(eta, Sequence) and not isinstance(eta, str) else [eta]

    etas = [check_positive("eta", number) for number in numbers]
    if not etas or len(set(etas)) < len(etas):
        raise ValueError(f"`eta`: expected one or more different numbers, got {eta!r}")
    return etas


def check_normalisation(normalisation: str) -> None:
    """Refuse what is none of the three."""
    check_choice("normalisation", normalisation, get_args(Normalisation))
