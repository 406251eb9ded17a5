from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from torch.utils._pytree import tree_leaves


def prediction_of(output: Any, samples: int) -> xr.Variable:
    """Label the first tensor of what a model returned."""
    first = getattr(output, "logits", output)
    tensor = next(leaf for leaf in tree_leaves(first) if isinstance(leaf, Tensor))
    if tensor.dim() == 0 or len(tensor) != samples:  # samples come second, or there is but one
        second = tensor.dim() > 1 and tensor.size(1) == samples
        tensor = tensor.transpose(0, 1) if second else tensor[None]
    dims = ["sample", *(f"output_{axis}" for axis in range(1, tensor.dim()))]
    dims = ["sample", "output"] if tensor.dim() == 2 else dims
    values = np.asarray(tensor.detach().to("cpu", torch.float64))
    return xr.Variable(dims, values, {"long_name": "output of the model"})
