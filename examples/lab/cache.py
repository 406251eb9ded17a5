"""Reading what an earlier run left on disk; what cannot be read is as good as not there."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import xarray as xr

Found = TypeVar("Found")


def read(path: Path, load: Callable[[Path], Found]) -> Found | None:
    """What `load` makes of a file; None, with a warning, if it fails, and None if there is none."""
    if not path.is_file():
        return None
    try:
        return load(path)
    except Exception as error:  # whatever a damaged file makes HDF5, zip or pickle say
        warnings.warn(f"{path.name} in the cache is damaged, run again: {error}", stacklevel=3)
        return None


def read_dataset(path: Path, *, having: str) -> xr.Dataset | None:
    """A Dataset, for `read`'s reasons or None; one without the variable `having` is damaged."""

    def load(path: Path) -> xr.Dataset:
        entry = xr.load_dataset(path, engine="h5netcdf")
        entry[having]
        return entry

    return read(path, load)


def read_state(path: Path) -> Any:
    """What `torch.save` wrote, in main memory; for `read`'s reasons or None."""
    import torch

    return read(path, lambda path: torch.load(path, map_location="cpu", weights_only=True))
