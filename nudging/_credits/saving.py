import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from resonance_toolkit import provenance


def to_dataset(kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> xr.Dataset:
    """One variable per tensor, with axes of its own, and the settings as JSON."""
    variables, axes = {}, {}
    for name, tensor in tensors.items():
        dims = [f"{name}.axis{i}" for i in range(tensor.dim())]
        for dim, size in zip(dims, tensor.shape, strict=True):
            axes[dim] = (dim, np.arange(size), {"long_name": f"index into {name}"})
        note = {"long_name": f"{name} of {kind}", "torch_dtype": str(tensor.dtype)}
        values = tensor.detach().to("cpu", torch.float64).numpy()  # exact for every float type
        variables[name] = (dims, values, note)
    attrs = provenance(f"nudging.{kind}", settings=json.dumps(settings, sort_keys=True))
    return xr.Dataset(variables, coords=axes, attrs=attrs | {"credit": kind})


def read_tensors(dataset: xr.Dataset) -> dict[str, Tensor]:
    """The tensors that `to_dataset` wrote, bit for bit."""
    tensors = {}
    for name, variable in dataset.data_vars.items():
        dtype = getattr(torch, variable.attrs["torch_dtype"].removeprefix("torch."))
        tensors[str(name)] = torch.from_numpy(variable.values.copy()).to(dtype)
    return tensors


def read_settings(dataset: xr.Dataset) -> dict[str, Any]:
    """The settings that `to_dataset` wrote."""
    settings: dict[str, Any] = json.loads(dataset.attrs["settings"])
    return settings


def check_kind(credit: object, saved: Mapping[str, Any]) -> None:
    """Refuse the state of another kind of credit."""
    kind, found = type(credit).__name__, saved.get("credit")
    if found != kind:
        raise ValueError(f"`saved`: expected the state of a {kind}, got that of {found!r}")
