"""A record on disk, row by row, so that a process that is killed loses nothing.

The file has one JSON object per line: first what all rows share (`RecordHeader`), then one recorded
update each, with all digits, and each with a checksum of its own (`crc32`). A line is handed to the
operating system as soon as its update is recorded. The last line may be torn, if the process was
killed amid writing it: it is left out.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from gradients._rows import RecordedUpdate
from resonance_toolkit import check_writable, locking, write_atomically


@dataclass(frozen=True)
class RecordHeader:
    """What all rows of a record share."""

    objectives: list[str]
    layers: list[str]
    sizes: list[int] | None  # parameters in each layer
    attributes: dict[str, str | int | float]


class RecordFile:
    """A file that follows a record; of several processes, the first writes it.

    Args:
        path: Where; nothing is written before the first row.

    Raises:
        ValueError: If no file can be there.
        OSError: If none can be written there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._is_begun = False
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise ValueError(f"`path`: expected a file in a folder that exists, got {str(path)!r}")
        if _is_first_process():
            check_writable("path", self.path)

    def add_latest(self, header: RecordHeader, updates: Sequence[RecordedUpdate]) -> None:
        """Write the last of all rows.

        Raises:
            ValueError: If it is the first, and the file is there already.
        """
        if not _is_first_process():
            return

        if self._is_begun:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_to_line(_to_fields(updates[-1])))
            return

        # Of two processes that begin at once, one is refused.
        with locking(self.path.parent):
            if self.path.exists() and self.path.stat().st_size > 0:
                raise ValueError(
                    f"`path`: expected a new file, got {str(self.path)!r}, which holds a record "
                    "already; give another path, or resume that record by load_state_dict"
                )
            self.replace(header, updates)

    def replace(self, header: RecordHeader, updates: Sequence[RecordedUpdate]) -> None:
        """Write all rows, in the place of what the file holds."""
        if not _is_first_process():
            return

        # Whole or not at all: if the process is killed here, the rows before are still there.
        lines = [_to_line(asdict(header)), *(_to_line(_to_fields(update)) for update in updates)]
        text = "".join(lines)
        write_atomically({self.path: lambda path: path.write_text(text, encoding="utf-8")})
        self._is_begun = True


def read_record(path: Path) -> tuple[RecordHeader, list[RecordedUpdate]]:
    """Read a file, as far as it goes.

    Raises:
        ValueError: If it is no such file, or a damaged one.
    """
    # A line without an end is torn; a file without a whole line is no record.
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header = RecordHeader(**_from_line(lines[0]))
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"`path`: expected a record that Trace(..., path=) wrote, got {str(path)!r}, which is "
            "another file or damaged"
        ) from None

    updates = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            updates.append(_to_update(_from_line(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"`path`: {str(path)!r} is damaged in line {number}: {error}"
            ) from None
    return header, updates


def _is_first_process() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _to_line(fields: dict[str, Any]) -> str:
    return json.dumps(fields | {"crc32": _checksum(fields)}) + "\n"


def _from_line(line: bytes) -> dict[str, Any]:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError("expected names and values")
    if fields.pop("crc32", None) != _checksum(fields):
        raise ValueError("what it holds and its checksum do not agree")
    return fields


def _checksum(fields: dict[str, Any]) -> int:
    # A number is written with all digits, so that reading and writing it gives the same text.
    return zlib.crc32(json.dumps(fields).encode())


def _to_fields(update: RecordedUpdate) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "step": update.step,
        "loss": update.loss.tolist(),
        "dot": update.dot.tolist(),
        "square": update.square.tolist(),
        "gradient_norm": update.gradient_norm,
    }
    if update.micro_square is not None:
        fields["micro_square"] = update.micro_square.tolist()
        fields["n_micro_batches"] = update.n_micro_batches
    return fields


def _to_update(fields: dict[str, Any]) -> RecordedUpdate:
    micro_square = fields.get("micro_square")
    return RecordedUpdate(
        step=fields["step"],
        loss=np.array(fields["loss"], dtype=np.float64),
        dot=np.array(fields["dot"], dtype=np.float64),
        square=np.array(fields["square"], dtype=np.float64),
        gradient_norm=fields["gradient_norm"],
        micro_square=None if micro_square is None else np.array(micro_square, dtype=np.float64),
        n_micro_batches=1 if micro_square is None else fields["n_micro_batches"],
    )
