"""What `Exits` tells of itself: a table, the parts of its latest loss, groups for an optimizer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn

from probes._exit_training.head import ExitPoint
from resonance_toolkit import check_not_negative, provenance, text_table

_LONG_NAMES = {
    "cross_entropy": "mean cross-entropy",
    "divergence": "mean divergence of the model's output from the exit's",
}


@dataclass(frozen=True)
class LatestLoss:
    """The parts of a loss: of each layer that was computed, its weight and mean loss."""

    weights: dict[str, float]
    losses: dict[str, Tensor]
    n_samples: int
    name: str = "cross_entropy"


def summarise_exits(
    points: Mapping[str, ExitPoint],
    weights: Mapping[str, float],
    *,
    has_own_heads: bool,
    is_tuned: bool = False,
) -> str:
    """Write a table of exits: layer, output, weight, and the way to the logits."""
    rows = [("layer", "output", "weight", "way to the logits")]

    for name, weight in weights.items():
        shape = ""
        path = "the model's output"
        if name in points:
            shape = " x ".join(str(size) for size in points[name].shape)
            path = str(points[name].head)
            if is_tuned:
                path = f"translator > {path}"
            elif has_own_heads:
                path = f"{path} > own head"
        rows.append((name, shape, f"{weight:g}", path))

    return text_table(rows)


def layer_coordinate(layers: Sequence[str]) -> tuple[str, np.ndarray, dict[str, str]]:
    """Return the coordinate `layer` of a Dataset, for exits in forward order."""
    attributes = {"long_name": "name of the module that the exit follows"}
    return "layer", np.array(layers, dtype=str), attributes


def losses_dataset(
    layers: Sequence[str], latest: LatestLoss | None, step: int, model: nn.Module | None
) -> xr.Dataset:
    """Make a Dataset of the weights and losses of the latest objective, all NaN before the first.

    A layer that was not computed had weight 0.
    """
    loss_name = "cross_entropy" if latest is None else latest.name
    weights = [math.nan] * len(layers)
    losses = [math.nan] * len(layers)
    if latest is not None:
        weights = [latest.weights.get(name, 0.0) for name in layers]
        losses = [float(latest.losses.get(name, math.nan)) for name in layers]

    return xr.Dataset(
        {
            "loss": ("layer", losses, {"long_name": _LONG_NAMES[loss_name], "units": "nat"}),
            "weight": ("layer", weights, {"long_name": "weight in the objective"}),
        },
        coords={
            "layer": layer_coordinate(layers),
            "step": ((), step, {"long_name": "losses made before"}),
        },
        attrs=provenance(
            "probes.Exits.measure",
            model,
            loss=loss_name,
            n_samples=0 if latest is None else latest.n_samples,
        ),
    )


def parameter_groups(
    root: nn.Module,
    segments: Mapping[str, int],
    own_parameters: Mapping[str, list[nn.Parameter]],
    learning_rates: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Make one optimizer group for each exit; `Exits.parameter_groups` says what belongs where.

    Args:
        root: The model.
        segments: For every parameter of the model, the number of its exit.
        own_parameters: Those of the exits' own heads, by layer.
        learning_rates: By layer, all exits in order.
    """
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": rate, "name": name} for name, rate in learning_rates.items()
    ]

    for name, parameter in root.named_parameters():
        groups[segments[name]]["params"].append(parameter)
    for group in groups:
        group["params"] += own_parameters.get(group["name"], [])

    # Some optimizers refuse a group without parameters.
    return [group for group in groups if group["params"]]


def exit_learning_rates(
    layers: Sequence[str], lr: float, factors: Sequence[float] | None
) -> dict[str, float]:
    """Return the learning rate of each exit's part of the model.

    Raises:
        ValueError: If a number is negative or not finite, or there is not one factor per layer.
    """
    shares = [1.0] * len(layers) if factors is None else list(factors)
    if len(shares) != len(layers):
        raise ValueError(
            f"`factors`: expected one for each of {', '.join(layers)}, got {len(shares)}"
        )

    # PyTorch's optimizers take a learning rate as a tensor, too.
    check_not_negative("lr", lr.item() if isinstance(lr, Tensor) else lr)
    for share in shares:
        check_not_negative("factors", share)

    return {name: lr * share for name, share in zip(layers, shares, strict=True)}
