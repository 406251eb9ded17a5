"""Files that survive accidents: written whole or not at all, read whole or not at all.

Writing: `write_atomically` takes a writer for each path; `dataset_writer`, `cache_writer` and
`resonance_toolkit.tensor_writer` make one. Reading: `read_dataset` and `read_state` give what an
earlier run left in the cache, or None if there is nothing or nothing that can be read. The run is
then made again, so a damaged file costs time and a warning, and nothing else.
"""

import os
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import xarray as xr

import resonance_toolkit
from resonance_toolkit import (
    Writer,
    check_digest,
    load_tensors,
    open_netcdf,
    to_netcdf_bytes,
    with_digest,
)

Content = TypeVar("Content")


def is_first_process() -> bool:
    """Tell whether this is the process that writes and prints, under `accelerate launch`."""
    return os.environ.get("RANK", "0") == "0"


def write_atomically(writers: Mapping[Path, Writer]) -> None:
    """Write all files or none, in folders that are made if they are not there."""
    for path in writers:
        path.parent.mkdir(parents=True, exist_ok=True)
    resonance_toolkit.write_atomically(writers)


def check_writable(path: Path) -> None:
    """Find out before the work whether there is a place for its result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    resonance_toolkit.check_writable("--cache", path)


def dataset_writer(dataset: xr.Dataset) -> Writer:
    """Return what writes a Dataset as netCDF, for `write_atomically`."""
    return lambda path: path.write_bytes(to_netcdf_bytes(dataset))


def cache_writer(dataset: xr.Dataset) -> Writer:
    """Return what writes a Dataset for `read_dataset`, with a digest."""
    return dataset_writer(with_digest(dataset))


def read_dataset(
    path: Path, *, required: str, renamed: Mapping[str, str] | None = None
) -> xr.Dataset | None:
    """Read a Dataset from the cache.

    Args:
        path: Where it would be.
        required: A variable that every such Dataset has; without it the file is damaged.
        renamed: By the name that earlier versions gave a variable, the name that it has now.

    Returns:
        The Dataset; None if there is no such file or, with a warning, if it is damaged.
    """

    def load(path: Path) -> xr.Dataset:
        with open_netcdf(path) as contents:
            dataset = contents.load()

        # Entries without a digest were written before there was one.
        if "digest" in dataset.attrs:
            dataset = check_digest(dataset)
        dataset[required]  # raises a KeyError, which says what is missing

        old_names = {old: new for old, new in (renamed or {}).items() if old in dataset}
        return dataset.rename(old_names)

    return _read(path, load)


def read_state(path: Path, *, required: Collection[str] = ()) -> dict[str, Any] | None:
    """Read a dictionary that `torch.save` wrote, into main memory.

    Args:
        path: Where it would be.
        required: Entries that every such dictionary has; without one of them the file is damaged.

    Returns:
        The dictionary; None if there is no such file or, with a warning, if it is damaged.
    """

    def load(path: Path) -> dict[str, Any]:
        state = load_tensors(path)
        missing_names = sorted(set(required) - set(state if isinstance(state, dict) else ()))
        if missing_names or not isinstance(state, dict):
            raise ValueError(f"it has no {', '.join(missing_names) or 'entries'}")
        return state

    return _read(path, load)


def _read(path: Path, load: Callable[[Path], Content]) -> Content | None:
    if not path.is_file():
        return None

    try:
        return load(path)
    except Exception as error:  # whatever a damaged file makes HDF5, zip or pickle say
        # Three levels up is whoever called `read_dataset` or `read_state`.
        reason = str(error).removeprefix(f"{str(path)!r} ").removeprefix("is damaged: ")
        warnings.warn(f"{path.name} in the cache is damaged, run again: {reason}", stacklevel=3)
        return None
