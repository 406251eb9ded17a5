from typing import Any

import xarray as xr

_PREFIX = "credit."


def saved_credit(result: xr.Dataset) -> xr.Dataset:
    """Take out of a result what its credit was saved as.

    Args:
        result: Of a verb that was given a credit with `to_dataset`, fresh or from a file.

    Returns:
        Dataset as that credit's `to_dataset` made it, for its `from_dataset`.

    Raises:
        ValueError: If there is none in it.
        TypeError: If it is no dataset.
    """
    if not isinstance(result, xr.Dataset):
        raise TypeError(f"`result`: expected an xarray.Dataset, got {type(result).__name__}")
    chosen = [name for name in result.variables if str(name).startswith(_PREFIX)]
    if not chosen:
        raise ValueError("`result`: expected one with a saved credit, got none in it")
    only = result[chosen].drop_vars([n for n in result.coords if n not in chosen], errors="ignore")
    cut = {name: str(name).removeprefix(_PREFIX) for name in {*only.variables, *only.dims}}
    attrs = {k.removeprefix(_PREFIX): v for k, v in result.attrs.items() if k.startswith(_PREFIX)}
    only = only.rename(cut)
    only.attrs = attrs
    return only


def with_credit(result: xr.Dataset, credit: Any) -> xr.Dataset:
    """Add what a credit needs to be made again, if it can tell (`to_dataset`)."""
    if not callable(getattr(credit, "to_dataset", None)):
        return result
    saved: xr.Dataset = credit.to_dataset()
    names = {name: f"{_PREFIX}{name}" for name in {*saved.variables, *saved.dims}}
    renamed = saved.rename(names)
    attrs = {f"{_PREFIX}{name}": value for name, value in saved.attrs.items()}
    return result.merge(renamed, combine_attrs="override").assign_attrs(attrs)
