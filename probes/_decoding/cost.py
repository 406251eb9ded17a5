"""What decoding costs: operations of its parts, and what was done against a full pass."""

from typing import Any

import numpy as np
import torch

from probes._decoding.decodable import Decodable
from probes._exit_training.flops import FlopCounter


def count_flops(model: Decodable, device: torch.device) -> tuple[dict[str, int], int]:
    """Operations of a layer, of its projections and of the head on one token; the vocabulary."""
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    x = model.embed(one, one[0])
    layer, counts = model.layers[-1], {}
    with FlopCounter() as counter:
        cache = layer.project(x, one[0])
        counts["projection"] = counter.get_total_flops()
        x = layer.attend(x, one[0], *cache)
        counts["layer"] = counter.get_total_flops()
        logits = model.head(x)
        counts["head"] = counter.get_total_flops() - counts["layer"]
    return counts, logits.shape[-1]


def compute_of(values: dict[str, Any], flops: dict[str, int], depth: int) -> dict[str, Any]:
    """The shares of the layers and of the operations that were run, as Dataset variables."""
    done = (
        values["layers_run"] * flops["layer"]
        + values["projections"] * flops["projection"]
        + values["heads_run"] * flops["head"]
    ).mean()
    full = depth * flops["layer"] + flops["head"]
    formula = named("mean depth over the number of layers", "1")
    counted = named("operations with weights, over those of a full pass", "1")
    return {
        "compute": ((), values["depth"].mean() / depth, formula),
        "compute_with_head": ((), done / full if full else np.nan, counted),
    }


def named(long_name: str, units: str | None) -> dict[str, str]:
    """Attributes of a variable."""
    return {"long_name": long_name} | ({"units": units} if units else {})
