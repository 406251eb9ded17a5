import math
from collections.abc import Sequence
from typing import Any

from torch import nn


def parameter_groups(
    root: nn.Module,
    layers: Sequence[str],
    segments: dict[str, int],
    own: dict[str, list[nn.Parameter]],
    lr: float,
    factors: Sequence[float] | None,
) -> list[dict[str, Any]]:
    """Optimizer groups by exit; `Exits.parameter_groups` says more."""
    shares = [1.0] * len(layers) if factors is None else list(factors)
    if len(shares) != len(layers):
        raise ValueError(
            f"`factors`: expected one for each of {', '.join(layers)}, got {len(shares)}"
        )
    for name, value in [("lr", lr), *(("factors", share) for share in shares)]:
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"`{name}`: expected finite numbers of at least 0, got {value!r}")
    groups: list[dict[str, Any]] = [
        {"params": [], "lr": lr * share, "name": name}
        for name, share in zip(layers, shares, strict=True)
    ]
    for name, parameter in root.named_parameters():
        groups[segments[name]]["params"].append(parameter)
    for group in groups:
        group["params"] += own.get(group["name"], [])
    return [group for group in groups if group["params"]]
