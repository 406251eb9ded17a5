from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from attention._capturing import capturing
from resonance import device_of, evaluating, preserving_rng


@torch.no_grad()
def capture(
    model: nn.Module,
    x: Any,
    *,
    layers: str | Sequence[str] | None = None,
    queries: str | Sequence[int] = "cls",
    keys: str = "patches",
    maps: bool = False,
    threshold: float = 0.1,
    mass: float = 0.9,
    prefix: int | None = None,
    chunk: int = 64,
) -> xr.Dataset:
    """Read the attention of a model."""
    device = device_of(model)
    x = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, x)
    args = x if isinstance(x, tuple) else () if isinstance(x, Mapping) else (x,)
    kwargs = x if isinstance(x, Mapping) else {}
    with (
        evaluating(model),
        preserving_rng([device]),
        capturing(
            model,
            layers=layers,
            queries=queries,
            keys=keys,
            maps=maps,
            threshold=threshold,
            mass=mass,
            prefix=prefix,
            chunk=chunk,
        ) as recording,
    ):
        output = model(*args, **kwargs)
    result = recording.dataset()
    return result
