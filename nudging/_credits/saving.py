"""Credits that have something to remember, as Datasets: alone, and inside a result.

`to_dataset` and `read_tensors` / `read_settings` are inverse to each other, bit for bit. In the
result of a measurement every name of that Dataset starts with `credit.` (`add_credit`), which
`nudging.saved_credit` takes off again.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from resonance_toolkit import provenance

CREDIT_PREFIX = "credit."


def to_dataset(kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> xr.Dataset:
    """Make one variable per tensor, with axes of its own, and keep the settings as JSON."""
    variables = {}
    coordinates = {}

    for name, tensor in tensors.items():
        # Axes of its own, since tensors of the same size need not be about the same things.
        dims = [f"{name}.axis{i}" for i in range(tensor.dim())]
        for dim, size in zip(dims, tensor.shape, strict=True):
            coordinates[dim] = (dim, np.arange(size), {"long_name": f"index into {name}"})

        values = tensor.detach().to("cpu", torch.float64).numpy()  # exact for every float type
        notes = {"long_name": f"{name} of {kind}", "torch_dtype": str(tensor.dtype)}
        variables[name] = (dims, values, notes)

    attributes = provenance(f"nudging.{kind}", settings=json.dumps(settings, sort_keys=True))
    return xr.Dataset(variables, coords=coordinates, attrs=attributes | {"credit": kind})


def read_tensors(dataset: xr.Dataset) -> dict[str, Tensor]:
    """Return the tensors that `to_dataset` wrote."""
    tensors = {}
    for name, variable in dataset.data_vars.items():
        dtype = getattr(torch, variable.attrs["torch_dtype"].removeprefix("torch."))
        tensors[str(name)] = torch.from_numpy(variable.values.copy()).to(dtype)
    return tensors


def read_settings(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the settings that `to_dataset` wrote."""
    settings: dict[str, Any] = json.loads(dataset.attrs["settings"])
    return settings


def check_kind(credit: object, saved: Mapping[str, Any]) -> None:
    """Refuse the state of another kind of credit."""
    expected_kind = type(credit).__name__
    if saved.get("credit") != expected_kind:
        raise ValueError(
            f"`saved`: expected the state of a {expected_kind}, got that of {saved.get('credit')!r}"
        )


def add_credit(result: xr.Dataset, credit: Any) -> xr.Dataset:
    """Add to a result what its credit needs to be made again, if it can tell (`to_dataset`)."""
    if not callable(getattr(credit, "to_dataset", None)):
        return result

    # Under other names, since a block may be called like a variable of the result.
    saved: xr.Dataset = credit.to_dataset()
    new_names = {name: f"{CREDIT_PREFIX}{name}" for name in {*saved.variables, *saved.dims}}
    attributes = {f"{CREDIT_PREFIX}{name}": value for name, value in saved.attrs.items()}
    merged = result.merge(saved.rename(new_names), combine_attrs="override")
    return merged.assign_attrs(attributes)
