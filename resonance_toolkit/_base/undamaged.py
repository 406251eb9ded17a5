"""Reading files so that no damage is taken for data: netCDF files of ours, and those of torch.

HDF5 and zip notice a file that was cut off, but not every flipped bit: HDF5 has no checksums unless
asked for, and torch writes some and reads none. So a Dataset carries a digest of all that it holds
(`with_digest`), which `check_digest` computes again.

A hostile file is small and claims to hold much. What is opened here holds no more than its own
size, in itself.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import BytesIO
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import torch

if TYPE_CHECKING:
    from pathlib import Path

    import h5py
    import xarray as xr

_DIGEST = "digest"

# How HDF5 marks a length that has no numbers of its own.
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def with_digest(dataset: xr.Dataset) -> xr.Dataset:
    """Add the attribute `digest`: of all variables and attributes, as they will be read back."""
    return dataset.assign_attrs({_DIGEST: _digest_of(dataset)})


def check_digest(dataset: xr.Dataset) -> xr.Dataset:
    """Return a Dataset without its digest, which must be right.

    Raises:
        ValueError: If it is another one, or none.

    Examples:
        >>> import xarray as xr
        >>> dataset = with_digest(xr.Dataset({"loss": ("step", [1.0, 2.0])}))
        >>> dict(check_digest(dataset).attrs)
        {}
        >>> dataset["loss"][1] = 2.000001
        >>> check_digest(dataset)
        Traceback (most recent call last):
        ValueError: is damaged: its contents and its digest do not agree
    """
    if _DIGEST not in dataset.attrs:
        raise ValueError("is damaged: it has no digest")
    if dataset.attrs[_DIGEST] != _digest_of(dataset):
        raise ValueError("is damaged: its contents and its digest do not agree")

    checked = dataset.copy()
    checked.attrs = {name: value for name, value in dataset.attrs.items() if name != _DIGEST}
    return checked


def to_netcdf_bytes(dataset: xr.Dataset) -> bytes:
    """Return a Dataset as the content of a netCDF file."""
    # By way of memory: HDF5 cannot close a file for which there is no room, and h5netcdf then takes
    # the whole process down when it is collected.
    buffer = BytesIO()
    with _without_dask_scheduler():
        dataset.to_netcdf(buffer, engine="h5netcdf")
    return buffer.getvalue()


@contextmanager
def open_netcdf(path: Path) -> Iterator[xr.Dataset]:
    """Open a file that `to_netcdf_bytes` made; its numbers are read when they are asked for.

    Raises:
        ValueError: If it is cut off, or claims to hold what it does not.
    """
    import h5py
    import xarray as xr

    # By way of Python's own file, on which HDF5 sets no lock.
    with path.open("rb") as file:
        try:
            with h5py.File(file, "r") as contents:
                _check_contents(contents)
            dataset = xr.open_dataset(file, engine="h5netcdf")
        except Exception as error:  # whatever a damaged file makes HDF5 say
            raise ValueError(f"is damaged: {error}") from error

        with dataset:
            yield dataset


def load_tensors(path: Path) -> Any:
    """Read what `torch.save` wrote, into main memory: only tensors and plain values.

    Raises:
        ValueError: If the file is damaged, or holds something else.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save({"step": 3}, Path(folder, "state.pt"))
        ...     load_tensors(Path(folder, "state.pt"))
        {'step': 3}
    """
    try:
        with ZipFile(path) as archive:
            # torch stores its files as they are, so they take as much room in memory as here.
            parts = archive.infolist()
            is_stored = all(part.compress_type == ZIP_STORED for part in parts)
            if not is_stored or sum(part.file_size for part in parts) > path.stat().st_size:
                raise ValueError("it is larger in memory than on the disk")
            if (damaged_part := archive.testzip()) is not None:
                raise ValueError(f"the checksum of {damaged_part} is wrong")

        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged file makes zip or pickle say
        raise ValueError(f"{str(path)!r} is damaged: {error}") from error


def _check_contents(contents: h5py.File) -> None:
    """Refuse contents that take more room than the file has, or lie in other files."""
    import h5py

    file_size = contents.id.get_filesize()
    _check_texts(contents)

    for name in contents:
        # Before it is opened: a link may lead to another file.
        if not isinstance(contents.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} is not in the file")
        item = contents[name]
        if not isinstance(item, h5py.Dataset):
            raise ValueError(f"{name!r} is not a variable")

        _check_texts(item)
        if item.attrs.get("NAME", b"")[: len(_NO_VARIABLE)] == _NO_VARIABLE:
            continue

        # Ours are written in one piece.
        is_elsewhere = item.external is not None or item.is_virtual
        if is_elsewhere or item.chunks is not None or item.id.get_storage_size() < item.nbytes:
            raise ValueError(f"{name!r} is not all in the file")

        # Texts lie elsewhere in the file, and one text may be there for many.
        if h5py.check_string_dtype(item.dtype) is not None:
            room = file_size
            for place in np.ndindex(item.shape):
                room -= len(item[place])
                if room < 0:
                    raise ValueError(f"{name!r} is larger in memory than in the file")


def _check_texts(item: h5py.Group | h5py.Dataset) -> None:
    import h5py

    for name in item.attrs:
        attribute = item.attrs.get_id(name)
        is_text = h5py.check_string_dtype(attribute.dtype) is not None
        if is_text and attribute.shape not in ((), (1,), None):
            raise ValueError(f"{name!r} is not a single text")


def _digest_of(dataset: xr.Dataset) -> str:
    digest = hashlib.sha256()
    digest.update(_attributes_as_text(dataset.attrs).encode())

    for name in sorted(dataset.variables, key=str):
        variable = dataset.variables[name]
        values = np.ascontiguousarray(variable.values)

        # Strings come back from a file as objects.
        if values.dtype.kind in "OUT":
            content = json.dumps([str(value) for value in values.ravel()]).encode()
            kind = "text"
        else:
            # There are many NaN, and a file need not keep which one it was.
            if values.dtype.kind == "f":
                values = np.where(np.isnan(values), values.dtype.type("nan"), values)
            content = values.tobytes()
            kind = values.dtype.str

        layout = [str(name), *variable.dims, *variable.shape, kind]
        digest.update(json.dumps(layout, default=str).encode())
        digest.update(_attributes_as_text(variable.attrs).encode())
        digest.update(content)

    return digest.hexdigest()


def _attributes_as_text(attributes: dict[Any, Any]) -> str:
    # A number comes back from a file as one of numpy's, or as an array of one.
    values = {
        str(name): np.ravel(np.asarray(value)).tolist()
        for name, value in attributes.items()
        if name != _DIGEST
    }
    return json.dumps(values, sort_keys=True, default=str)


def _without_dask_scheduler() -> AbstractContextManager[object]:
    # With a client of Dask, xarray would ask its scheduler for a lock by the name of the buffer.
    dask = sys.modules.get("dask")
    return dask.config.set(scheduler="synchronous") if dask else nullcontext()
