"""Finished points on disk: a netCDF file that is read back only for the same work.

Several processes may keep their points in one file. A process works on the table that it began
with; what others have finished since is added where the file is written, so that the file only
gains points, and every process ends with the result that it would have had alone.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves

from resonance_toolkit import (
    check_digest,
    check_writable,
    locking,
    open_netcdf,
    to_netcdf_bytes,
    warn_user,
    with_digest,
    write_atomically,
)

Array = NDArray[np.float64]

_MADE_BY = "landscape, finished points"


class Checkpoint:
    """The table of values of a run, on disk.

    Args:
        path: The file; made if it does not exist, before any work.
        identity: What the run is made of. A file with another identity is refused.
        points: Where the values are, shape `(point, axis)`.
        value_names: Of the first columns of the table.
        n_columns: Values at each point.

    Raises:
        ValueError: If the file is of other work, damaged, or something else.
        OSError: If it cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        identity: dict[str, Any],
        points: Array,
        value_names: Sequence[str],
        n_columns: int,
    ) -> None:
        self.path = Path(path)
        self.identity = {key: _digest(str(value)) for key, value in identity.items()}
        self.points = points
        self.value_names = value_names

        self.table = np.full((len(points), n_columns), np.nan)
        self.is_done: NDArray[np.bool_] = np.zeros(len(points), bool)
        self._has_warned = False

        # As large as it will be: a disk without room is found out now.
        with locking(self.path.parent):
            if self.path.exists():
                self.table, self.is_done = self._read()
            else:
                self._write(self.table, self.is_done)

    def save(self) -> None:
        """Write what is finished here, and what others have finished meanwhile."""
        with locking(self.path.parent):
            table = self.table
            is_done = self.is_done

            if self.path.exists():
                try:
                    other_table, is_done_elsewhere = self._read()
                except _OtherWorkError as error:
                    self._warn(error)
                    return
                except ValueError:
                    pass  # damaged meanwhile: what is finished here replaces it
                else:
                    table = np.where(is_done[:, None], table, other_table)
                    is_done = is_done | is_done_elsewhere

            self._write(table, is_done)

    def _write(self, table: Array, is_done: NDArray[np.bool_]) -> None:
        axes = ("alpha", "beta")
        positions = {
            axis: ("point", self.points[:, i], {"long_name": f"distance along direction {i + 1}"})
            for i, axis in zip(range(self.points.shape[1]), axes, strict=False)
        }
        contents = xr.Dataset(
            {
                "table": (("point", "value"), table, {"long_name": "values; NaN where unfinished"}),
                "done": ("point", is_done.astype(np.int8), {"long_name": "1 where finished"}),
                **positions,
            },
            attrs={
                "made_by": _MADE_BY,
                "values": ", ".join(self.value_names),
                "identity": json.dumps(self.identity, sort_keys=True),
            },
        )
        content = to_netcdf_bytes(with_digest(contents))
        write_atomically({self.path: lambda path: path.write_bytes(content)})

    def _read(self) -> tuple[Array, NDArray[np.bool_]]:
        """Read the table and what is done; only if it is of the same work, and undamaged."""
        try:
            with open_netcdf(self.path) as contents:
                if contents.attrs.get("made_by") != _MADE_BY:
                    raise ValueError("is not one of ours, or damaged")

                # Before the table is read: the file of other work may be a large one.
                if differences := self._list_differences(contents):
                    return self._refuse_other_work(differences, contents)
                checked = check_digest(contents.load())
        except _OtherWorkError:
            raise
        except Exception as error:
            if not self._begins_like_netcdf():
                raise ValueError(f"`checkpoint`: {str(self.path)!r} is not one of ours") from error
            reason = str(error) if str(error).startswith("is ") else f"is damaged: {error}"
            raise ValueError(
                f"`checkpoint`: {str(self.path)!r} {reason}. Delete it or give another path"
            ) from error

        return checked["table"].values.copy(), checked["done"].values == 1

    def _list_differences(self, contents: xr.Dataset) -> list[str]:
        identity: dict[str, str] = json.loads(contents.attrs["identity"])
        keys = sorted(identity.keys() | self.identity.keys())
        differences = [key for key in keys if identity.get(key) != self.identity.get(key)]

        if not differences and contents["table"].shape != self.table.shape:
            return ["shape"]
        return differences

    def _refuse_other_work(
        self, differences: list[str], contents: xr.Dataset
    ) -> tuple[Array, NDArray[np.bool_]]:
        # Nothing is lost with a file in which nothing is finished, as a run leaves it that failed
        # at its first point.
        if not contents["done"].values.any():
            return np.full_like(self.table, np.nan), np.zeros_like(self.is_done)

        raise _OtherWorkError(
            f"`checkpoint`: {str(self.path)!r} was made with other settings or another model; "
            f"it differs in {', '.join(differences)}. Delete it or give another path"
        )

    def _begins_like_netcdf(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(4) == b"\x89HDF"

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            warn_user(f"{error}. From here on, the points of this run are not saved")
            self._has_warned = True


def check_place(path: Path) -> None:
    """Refuse a place that cannot hold a checkpoint, before any work.

    Raises:
        ValueError: If there is no such folder, or another folder in the file's place.
        OSError: If no file can be written there.
    """
    if not path.parent.is_dir():
        raise ValueError(f"`checkpoint`: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise ValueError(f"`checkpoint`: expected a file, got the folder {str(path)!r}")
    check_writable("checkpoint", path)


class _OtherWorkError(ValueError):
    """The file is whole, and of another run."""


def fingerprint(tensors: Iterable[Any]) -> str:
    """A digest of the bytes, shapes and types of tensors, nested or not."""
    digest = hashlib.sha256()

    # A generator: directions that are written out when asked for are so one at a time.
    for leaf in (leaf for tree in tensors for leaf in tree_leaves(tree)):
        if isinstance(leaf, Tensor):
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().data)

    return digest.hexdigest()[:16]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
