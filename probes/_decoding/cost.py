"""What decoding costs: operations of its parts, and what was done against a full pass."""

from typing import Any

import numpy as np
import torch

from probes._decoding.decodable import Decodable


def count_flops(model: Decodable, device: torch.device) -> tuple[dict[str, int], int]:
    """Count the operations of a layer, of its projections and of the head on one token.

    Returns:
        The counts by `"projection"`, `"layer"` (its projections included) and `"head"`, and the
        size of the vocabulary.
    """
    token = torch.zeros(1, 1, dtype=torch.long, device=device)
    position = token[0]
    layer = model.layers[-1]
    x = model.embed(token, position)

    # Here, since torch's counter asks for triton, and says so where there is none.
    from probes._exit_training.flops import FlopCounter

    # At the first position there is nothing else to attend to: products with keys and values of
    # other positions, which grow with the text, are left out.
    flops = {}
    with FlopCounter() as counter:
        cache = layer.project(x, position)
        flops["projection"] = counter.get_total_flops()
        x = layer.attend(x, position, *cache)
        flops["layer"] = counter.get_total_flops()
        logits = model.head(x)
        flops["head"] = counter.get_total_flops() - flops["layer"]

    return flops, logits.shape[-1]


def compute_variables(
    values: dict[str, np.ndarray], flops: dict[str, int], n_layers: int
) -> dict[str, Any]:
    """Return the shares of the layers and of the operations that were run, for a Dataset."""
    mean_flops = (
        values["layers_run"] * flops["layer"]
        + values["projections"] * flops["projection"]
        + values["heads_run"] * flops["head"]
    ).mean()
    full_flops = n_layers * flops["layer"] + flops["head"]

    return {
        "compute": (
            (),
            values["depth"].mean() / n_layers,
            variable_attributes("mean depth over the number of layers", "1"),
        ),
        "compute_with_head": (
            (),
            mean_flops / full_flops if full_flops else np.nan,
            variable_attributes("operations with weights, over those of a full pass", "1"),
        ),
    }


def variable_attributes(long_name: str, units: str | None) -> dict[str, str]:
    """Return the attributes of a variable, with units if it has some."""
    return {"long_name": long_name} | ({"units": units} if units else {})
