"""Files that survive accidents: written whole or not at all, read whole or not at all.

Writing: `write_atomically` takes a writer for each path; `dataset_writer` makes one for a Dataset.
Reading: `read_dataset` and `read_state` give what an earlier run left in the cache, or None if
there is nothing or nothing that can be read. The run is then made again, so a damaged file costs
time and a warning, and nothing else.
"""

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from zipfile import ZipFile

import xarray as xr

Writer = Callable[[Path], object]
Content = TypeVar("Content")


def is_first_process() -> bool:
    """Tell whether this is the process that writes and prints, under `accelerate launch`."""
    return os.environ.get("RANK", "0") == "0"


def write_atomically(writers: Mapping[Path, Writer]) -> None:
    """Write all files or none: each to a temporary neighbour first, then all are renamed."""
    with ExitStack() as stack:
        temporary_paths = {
            path: stack.enter_context(_temporary_neighbour(path)) for path in writers
        }

        for path, write in writers.items():
            write(temporary_paths[path])

        for path, temporary_path in temporary_paths.items():
            os.replace(temporary_path, path)


def dataset_writer(dataset: xr.Dataset) -> Writer:
    """Return what writes a Dataset as netCDF, for `write_atomically`."""

    def write(path: Path) -> None:
        # By way of memory: HDF5 cannot close a file for which there is no room, and h5netcdf then
        # takes the whole process down when it is collected.
        buffer = BytesIO()
        with _without_dask_scheduler():
            dataset.to_netcdf(buffer, engine="h5netcdf")
        path.write_bytes(buffer.getbuffer())

    return write


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
        dataset = xr.load_dataset(path, engine="h5netcdf")
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
    import torch

    def load(path: Path) -> dict[str, Any]:
        # torch writes checksums, but reads none.
        with ZipFile(path) as archive:
            if (damaged_part := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged_part} is wrong")

        state = torch.load(path, map_location="cpu", weights_only=True)
        missing = sorted(set(required) - set(state if isinstance(state, dict) else ()))
        if missing or not isinstance(state, dict):
            raise ValueError(f"it has no {', '.join(missing) or 'entries'}")
        return state

    return _read(path, load)


def _read(path: Path, load: Callable[[Path], Content]) -> Content | None:
    if not path.is_file():
        return None

    try:
        return load(path)
    except Exception as error:  # whatever a damaged file makes HDF5, zip or pickle say
        # Three levels up is whoever called `read_dataset` or `read_state`.
        warnings.warn(f"{path.name} in the cache is damaged, run again: {error}", stacklevel=3)
        return None


@contextmanager
def _temporary_neighbour(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)

    # In the same folder, since a rename is atomic within one file system only; with a random name,
    # since several machines may write to a shared disk.
    temporary_path = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield temporary_path
    finally:
        temporary_path.unlink(missing_ok=True)


def _without_dask_scheduler() -> AbstractContextManager[object]:
    # With a client of Dask, xarray would ask its scheduler for a lock by the name of the buffer.
    dask = sys.modules.get("dask")
    return dask.config.set(scheduler="synchronous") if dask else nullcontext()
