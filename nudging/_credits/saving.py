"""Credits that have something to remember, as Datasets: alone, and inside a result.

`to_dataset` and `read_saved` are inverse to each other, bit for bit. In the result of a measurement
every name of that Dataset starts with `credit.` (`add_credit`), which `nudging.saved_credit` takes
off again.
"""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from resonance_toolkit import check_digest, provenance, with_digest

CREDIT_PREFIX = "credit."

_DTYPES = {
    str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Saved:
    """What a credit was saved as; the tensors in the order that they had."""

    settings: dict[str, Any]
    tensors: dict[str, Tensor]


def to_dataset(kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> xr.Dataset:
    """Make one variable per tensor, with axes of its own, and keep the settings as JSON."""
    variables = {}
    coordinates = {}

    for block, tensor in tensors.items():
        name = _quote(block)

        # Axes of its own, since tensors of the same size need not be about the same things.
        dims = [f"{name}.axis{i}" for i in range(tensor.dim())]
        for dim, size in zip(dims, tensor.shape, strict=True):
            coordinates[dim] = (dim, np.arange(size), {"long_name": f"index into {name}"})

        values = tensor.detach().to("cpu", torch.float64).numpy()  # exact for every float type
        notes = {"long_name": f"{name} of {kind}", "torch_dtype": str(tensor.dtype)}
        variables[name] = (dims, values, notes)

    # The order of variables is that of whoever sorted them last; credits go from block to block.
    contents = {"settings": settings, "tensors": list(tensors)}
    attributes = provenance(f"nudging.{kind}", settings=json.dumps(contents, sort_keys=True))
    return with_digest(xr.Dataset(variables, coordinates, attributes | {"credit": kind}))


def read_saved(dataset: xr.Dataset) -> Saved:
    """Return what `to_dataset` was given.

    Raises:
        ValueError: If the Dataset is damaged, or none of ours.
    """
    dataset = check_digest(dataset)
    contents = json.loads(dataset.attrs["settings"])
    names = {unquote(str(name)): name for name in dataset.data_vars}
    if set(contents) != {"settings", "tensors"} or sorted(contents["tensors"]) != sorted(names):
        raise ValueError("expected the settings and the names of the tensors that are there")

    tensors = {}
    for block in contents["tensors"]:
        variable = dataset[names[block]]
        dtype = _DTYPES.get(str(variable.attrs.get("torch_dtype")))
        if dtype is None or variable.dtype != np.float64:
            raise ValueError(
                f"at {block!r}: expected float64 numbers of one of {', '.join(_DTYPES)}, got "
                f"{variable.dtype} of {variable.attrs.get('torch_dtype')!r}"
            )
        tensors[block] = torch.from_numpy(variable.values.copy()).to(dtype)
    return Saved(dict(contents["settings"]), tensors)


def check_settings(cls: type, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a class does not take, or of another type than its own."""
    parameters = inspect.signature(cls).parameters
    for name, value in settings.items():
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        expected = (int, float, type(None)) if default is None else (int, type(default))
        is_flag = isinstance(value, bool) or isinstance(default, bool)
        if not isinstance(value, expected) or (is_flag and type(value) is not type(default)):
            raise ValueError(f"expected settings of {cls.__name__}, got {name}={value!r}")


def _quote(block: str) -> str:
    # A slash would be a group of the file; the module of a `ModuleDict` may have one in its name.
    return block.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")


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
