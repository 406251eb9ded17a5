"""What is finished, in memory and, with a path, on disk: a run continues from there after a kill.

The file is one Dataset of ours. Each finished piece is a netCDF file of its own inside it, as
bytes; facts (the plan, what each part came to) are JSON. A digest covers all of it.
"""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from resonance_toolkit import (
    check_digest,
    check_writable,
    locking,
    open_netcdf,
    to_netcdf_bytes,
    with_digest,
    write_atomically,
)

_MADE_BY = "resonance.examine, finished parts"


class Store:
    """Finished pieces by name, and facts about the run.

    Args:
        path: A file that holds them, made before any work; None keeps them in memory.
        identity: What the run is made of; a file of another run is refused.

    Raises:
        ValueError: If the file is of another run, damaged, or something else.
        OSError: If it cannot be written.
    """

    def __init__(self, path: str | Path | None, identity: dict[str, str]) -> None:
        self.path = None if path is None else Path(path)
        self.identity = identity
        self.pieces: dict[str, xr.Dataset] = {}
        self.facts: dict[str, Any] = {}
        self._bytes: dict[str, bytes] = {}

        if self.path is None:
            return
        _check_place(self.path)
        if self.path.exists():
            self._read(self.path)
        else:
            self._write()

    def keep_fact(self, name: str, value: Any) -> None:
        """Keep what JSON can hold."""
        self.facts[name] = value
        self._write()

    def keep_piece(self, name: str, dataset: xr.Dataset) -> xr.Dataset:
        """Keep a Dataset, and return it."""
        self.pieces[name] = dataset
        if self.path is not None:
            self._bytes[name] = to_netcdf_bytes(dataset)
        self._write()
        return dataset

    def measure(self, name: str, work: Callable[[], xr.Dataset]) -> xr.Dataset:
        """Return a piece that is there, or do the work and keep what it gives."""
        if name in self.pieces:
            return self.pieces[name]
        return self.keep_piece(name, work())

    def _write(self) -> None:
        if self.path is None:
            return

        # Each piece has a length of its own, and so an axis of its own.
        variables = {
            f"piece {index}": (
                f"byte {index}",
                np.frombuffer(content, dtype=np.uint8),
                {"long_name": name},
            )
            for index, (name, content) in enumerate(self._bytes.items())
        }
        attributes = {
            "made_by": _MADE_BY,
            "identity": json.dumps(self.identity, sort_keys=True),
            "facts": json.dumps(self.facts, sort_keys=True),
        }

        content = to_netcdf_bytes(with_digest(xr.Dataset(variables, attrs=attributes)))
        with locking(self.path.parent):
            write_atomically({self.path: lambda place: place.write_bytes(content)})

    def _read(self, path: Path) -> None:
        try:
            with open_netcdf(path) as contents:
                if contents.attrs.get("made_by") != _MADE_BY:
                    raise ValueError("is not a checkpoint of `examine`")
                checked = check_digest(contents.load())
        except (ValueError, OSError) as error:
            reason = str(error) if str(error).startswith("is ") else f"is damaged: {error}"
            raise ValueError(
                f"`checkpoint`: {str(path)!r} {reason}. Delete it or give another path"
            ) from error

        identity = json.loads(checked.attrs["identity"])
        names = sorted(identity.keys() | self.identity.keys())
        differences = [name for name in names if identity.get(name) != self.identity.get(name)]
        if differences:
            raise ValueError(
                f"`checkpoint`: {str(path)!r} was made with other settings, data or another model; "
                f"it differs in {', '.join(differences)}. Delete it or give another path"
            )

        self.facts = json.loads(checked.attrs["facts"])
        for variable in checked.data_vars.values():
            name = variable.attrs["long_name"]
            self._bytes[name] = variable.values.tobytes()
            self.pieces[name] = xr.load_dataset(BytesIO(self._bytes[name]), engine="h5netcdf")


def _check_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"`checkpoint`: there is no folder {str(path.parent)!r}")
    if path.is_dir():
        raise ValueError(f"`checkpoint`: expected a file, got the folder {str(path)!r}")
    check_writable("checkpoint", path)
