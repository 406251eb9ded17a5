from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xarray as xr
from torch import Tensor, nn

from probes._exit_training.head import Head
from resonance_toolkit import provenance


@dataclass(frozen=True)
class ExitPoint:
    """An exit: what its layer yields per sample, and how that becomes logits (or features)."""

    shape: tuple[int, ...]
    head: Head


def summarise_exits(
    points: Mapping[str, ExitPoint], weights: Mapping[str, float], *, own: bool
) -> str:
    """A table of exits: layer, output, weight, and the way to the logits."""
    rows = [("layer", "output", "weight", "way to the logits")]
    for name, weight in weights.items():
        shape, way = "", "the model's output"
        if name in points:
            shape = " x ".join(str(size) for size in points[name].shape)
            way = f"{points[name].head}{' > own head' if own else ''}"
        rows.append((name, shape, f"{weight:g}", way))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)


def parts_of(
    layers: Sequence[str],
    latest: Mapping[str, tuple[float, Tensor]],
    step: int,
    model: nn.Module | None,
) -> xr.Dataset:
    """The weights and losses of the latest objective; `Exits.measure` says more."""
    nan = float("nan")
    weights = [latest[name][0] if name in latest else (0.0 if latest else nan) for name in layers]
    losses = [float(latest[name][1]) if name in latest else nan for name in layers]
    return xr.Dataset(
        {
            "loss": ("layer", losses, {"long_name": "mean cross-entropy", "units": "nat"}),
            "weight": ("layer", weights, {"long_name": "weight in the objective"}),
        },
        coords={
            "layer": ("layer", list(layers), {"long_name": "exit"}),
            "step": ((), step, {"long_name": "losses made before"}),
        },
        attrs=provenance("probes.Exits.measure", model),
    )
