"""What `alignment` and `measure` share: the angle between a credit and the loss gradient."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    norms,
    standard_error,
    without_padding,
)


@dataclass(frozen=True)
class GradientCosine:
    """Cosines and norms.

    Attributes:
        floor: The smallest norm of the mean loss's gradient that a cosine is taken with.
    """

    floor: float

    def measure_batch(self, batch: ObservedBatch) -> dict[str, Tensor]:
        """Return norms and cosines, `(layer, sample)`."""
        gradient = without_padding(batch.state, batch.state.gradient())
        hidden = without_padding(batch.state, batch.state.hidden)
        gradient_norm = norms(gradient)
        credit_norm = norms(batch.credit)

        # A sample without a credit or without a gradient has no angle.
        cosine = inner_products(_unit_vectors(gradient), _unit_vectors(batch.credit))
        is_defined = (gradient_norm > 0) & (credit_norm > 0)
        return {
            "cosine": cosine.where(is_defined, torch.nan),
            "gradient_norm": gradient_norm,
            "credit_norm": credit_norm,
            "hidden_norm": norms(hidden),
        }

    def make_dataset(self, values: Mapping[str, Array], blocks: Sequence[str]) -> xr.Dataset:
        """Return means and medians over samples; no cosine with a reference below the floor."""
        gradient_norm = np.median(values["gradient_norm"], -1)
        # The gradient of the mean loss with respect to one sample's state has a factor 1/N.
        mean_loss_norm = gradient_norm / values["gradient_norm"].shape[-1]
        is_valid = mean_loss_norm >= self.floor

        cosine = np.where(is_valid[:, None], values["cosine"], np.nan)
        mean, deviation, error = np.array([_moments(row[~np.isnan(row)]) for row in cosine]).T

        hidden_norm = np.median(values["hidden_norm"], -1)
        credit_norm = np.median(values["credit_norm"], -1)
        variables: dict[str, tuple[Any, Any, str]] = {
            "cosine": ("layer", mean, "cosine of credit and loss gradient"),
            "cosine_sd": ("layer", deviation, "standard deviation of the cosine over samples"),
            "cosine_se": ("layer", error, "standard error of the mean cosine over samples"),
            "gradient_norm": ("layer", gradient_norm, "median norm of a sample's loss gradient"),
            "mean_loss_gradient_norm": (
                "layer",
                mean_loss_norm,
                "median norm of the mean loss's gradient",
            ),
            "hidden_norm": ("layer", hidden_norm, "median norm of the block's output"),
            "credit_norm": ("layer", credit_norm, "median norm of the credit"),
            "valid": ("layer", is_valid, "the gradient is large enough to compare with"),
        }

        reasons = [
            self._describe_invalid(block, norm)
            for block, norm, valid in zip(blocks, mean_loss_norm, is_valid, strict=True)
            if not valid
        ]
        return make_dataset(
            variables,
            {"layer": layer_coordinate(blocks)},
            {"floor": self.floor, "invalid": "; ".join(reasons) or "none"},
        )

    def _describe_invalid(self, block: str, norm: float) -> str:
        verdict = "no number" if np.isnan(norm) else f"below {self.floor:g}"
        return f"{block}: gradient norm {norm:.2g} of the mean loss is {verdict}"


def _unit_vectors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: normalise(tensor, "unit") for name, tensor in tensors.items()}


def _moments(cosines: Array) -> tuple[float, float, float]:
    """Return mean, standard deviation and standard error; NaN where there are too few."""
    mean = float(cosines.mean()) if cosines.size else np.nan
    deviation = float(cosines.std(ddof=1)) if cosines.size > 1 else np.nan
    return mean, deviation, float(standard_error(cosines))
