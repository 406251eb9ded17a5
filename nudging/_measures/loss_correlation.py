"""What `correlation` and `measure` share: does a credit predict what random steps do?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from nudging._measures.batches import ObservedBatch
from nudging._measures.numbers import (
    Array,
    layer_coordinate,
    make_dataset,
    stack_blocks,
    subtract_losses,
)
from nudging._replay.draws import draw_directions
from resonance_toolkit import widest_float

# Variances are taken of numbers scaled to at most 1 in size. Below this (the square of 1e-12, which
# is some thousand roundings) they are nothing but rounding, and there is no correlation.
_SMALLEST_VARIANCE = 1e-24


@dataclass(frozen=True)
class LossCorrelation:
    """Predicted and true changes of the loss, in random directions.

    Attributes:
        epsilon: Length of a step.
        n_directions: Directions per sample and block.
        seed: Determines the directions.
    """

    epsilon: float
    n_directions: int
    seed: int

    @torch.no_grad()
    def measure_batch(self, batch: ObservedBatch) -> dict[str, Tensor]:
        """Return predicted and true changes, `(layer, direction, sample)`."""
        state = batch.state

        losses_before = state.losses()
        predicted_changes = []
        true_changes = []

        for name, hidden in state.hidden.items():
            directions = draw_directions(state, name, self.seed, "perturbation")
            for direction in islice(directions, self.n_directions):
                rows = direction.flatten(1)
                unit_rows = rows / rows.norm(dim=1, keepdim=True)
                step = self.epsilon * unit_rows.reshape(direction.shape)

                # To first order, L(h + v) - L(h) = <g, v>; a credit stands for g.
                wide_step = step.to(widest_float(step.device))
                predicted = (batch.credit[name] * wide_step).flatten(1).sum(1)
                losses_after = state.losses(state.replay(name, hidden + step))
                predicted_changes.append(predicted)
                true_changes.append(subtract_losses(losses_after, losses_before))

        shape = (len(state.blocks), self.n_directions, len(state))
        return {
            "predicted": stack_blocks(predicted_changes).reshape(shape),
            "true": torch.stack(true_changes).reshape(shape),
        }

    def make_dataset(self, values: Mapping[str, Array], blocks: Sequence[str]) -> xr.Dataset:
        """Return Pearson's correlation of each block."""
        correlations = [
            _correlate(predicted, true)
            for predicted, true in zip(values["predicted"], values["true"], strict=True)
        ]
        rho, error = np.array(correlations).T
        return make_dataset(
            {
                "correlation": ("layer", rho, "correlation of predicted and true loss changes"),
                "correlation_se": (
                    "layer",
                    error,
                    "standard error of the correlation over samples",
                ),
            },
            {"layer": layer_coordinate(blocks)},
            {"epsilon": self.epsilon, "n_directions": self.n_directions},
        )


def _correlate(predicted: Array, true: Array) -> tuple[float, float]:
    """Return Pearson's correlation of `(direction, sample)`, and its jackknife error over samples.

    With r_i the correlation without sample i, the error is `sqrt((n - 1) mean_i (r_i - mean)^2)`.
    """
    # Scaled and centred, so that no digits are lost in the differences of moments below.
    p, t = (side / max(np.abs(side).max(), np.finfo(float).tiny) for side in (predicted, true))
    p = p - p.mean()
    t = t - t.mean()
    n_directions, n_samples = p.shape

    moments_by_sample = np.array([term.sum(0) for term in (p, t, p * p, t * t, p * t)])
    moments = moments_by_sample.sum(1, keepdims=True)
    rho = float(_correlation_of_moments(moments, n_directions * n_samples)[0])
    if n_samples < 2:
        return rho, float("nan")

    without_one = _correlation_of_moments(
        moments - moments_by_sample, n_directions * (n_samples - 1)
    )
    spread = np.mean((without_one - without_one.mean()) ** 2)
    return rho, float(np.sqrt((n_samples - 1) * spread))


def _correlation_of_moments(moments: Array, n_pairs: int) -> Array:
    p, t, pp, tt, pt = moments / n_pairs
    variance_p = pp - p * p
    variance_t = tt - t * t

    varies = (variance_p > _SMALLEST_VARIANCE) & (variance_t > _SMALLEST_VARIANCE)
    scale = np.sqrt(np.where(varies, variance_p * variance_t, 1.0))
    return np.where(varies, (pt - p * t) / scale, np.nan)
