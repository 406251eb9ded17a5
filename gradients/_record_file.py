"""A record on disk, row by row, so that a process that is killed loses nothing.

The file has one JSON object per line: first what all rows share (`RecordHeader`), then one recorded
update each, with all digits, and each with a checksum of its own (`crc32`). A line is handed to the
operating system as soon as its update is recorded. The last line may be torn, if the process was
killed while writing it: it is left out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradients._rows import RecordedUpdate
from resonance_toolkit import LineFile, from_checked_line, to_checked_line


@dataclass(frozen=True)
class RecordHeader:
    """What all rows of a record share."""

    objectives: list[str]
    layers: list[str]
    sizes: list[int] | None  # parameters in each layer
    attributes: dict[str, str | int | float]


class RecordFile(LineFile):
    """A file that follows a record; of several processes, the first writes it."""

    def add_latest(self, header: RecordHeader, updates: Sequence[RecordedUpdate]) -> None:
        """Write the last of all rows.

        Raises:
            ValueError: If it is the first, and the file is there already.
        """
        latest = to_checked_line(_to_fields(updates[-1]))
        self.add([latest], lambda: _to_lines(header, updates))

    def replace_rows(self, header: RecordHeader, updates: Sequence[RecordedUpdate]) -> None:
        """Write all rows, in the place of what the file holds."""
        self.replace(_to_lines(header, updates))


def read_record(path: Path) -> tuple[RecordHeader, list[RecordedUpdate]]:
    """Read a file, as far as it goes.

    Raises:
        ValueError: If it is not such a file, or is damaged.
    """
    # A line without an end is torn; a file without a whole line is not a record.
    lines = path.read_bytes().split(b"\n")[:-1]
    try:
        header = RecordHeader(**from_checked_line(lines[0]))
    except (IndexError, TypeError, ValueError):
        raise ValueError(
            f"`path`: expected a record that Trace(..., path=) wrote, got {str(path)!r}, which is "
            "another file or damaged"
        ) from None

    updates = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            updates.append(_to_update(from_checked_line(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"`path`: {str(path)!r} is damaged in line {number}: {error}"
            ) from None
    return header, updates


def _to_lines(header: RecordHeader, updates: Sequence[RecordedUpdate]) -> list[str]:
    rows = [to_checked_line(_to_fields(update)) for update in updates]
    return [to_checked_line(asdict(header)), *rows]


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
