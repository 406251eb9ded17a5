"""Writing a Dataset to a file, on a disk that may be full."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path

import xarray as xr


def writer(result: xr.Dataset) -> Callable[[Path], object]:
    """What writes a Dataset, for `lab.results.publish.write_atomically`."""

    def write(path: Path) -> None:
        # By way of memory: HDF5 cannot close a file for which there is no room, and h5netcdf then
        # takes the whole process down when it is collected.
        buffer = BytesIO()
        with _without_cluster():
            result.to_netcdf(buffer, engine="h5netcdf")
        path.write_bytes(buffer.getbuffer())

    return write


def _without_cluster() -> AbstractContextManager[object]:
    # With a client of Dask, xarray would ask its scheduler for a lock by the name of the buffer.
    dask = sys.modules.get("dask")
    return dask.config.set(scheduler="synchronous") if dask else nullcontext()
