"""Reading what an earlier run left on disk; what cannot be read is as good as not there."""

import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZipFile

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


def read_state(path: Path, *, having: Collection[str] = ()) -> Any:
    """What `torch.save` wrote, in main memory; for `read`'s reasons or None.

    A dictionary without one of the entries `having` is damaged, and so is anything else.
    """
    import torch

    def load(path: Path) -> Any:
        with ZipFile(path) as archive:  # torch writes checksums, but reads none
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
        missing = sorted(set(having) - set(state if isinstance(state, dict) else ()))
        if missing or not isinstance(state, dict):
            raise ValueError(f"it has no {', '.join(missing) or 'entries'}")
        return state

    return read(path, load)
