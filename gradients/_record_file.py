"""A record on disk, row by row, so that a process that is killed loses nothing.

The file has one JSON object per line: first what all rows share (`RecordHeader`), then one recorded
update each, with all digits. A line is handed to the operating system as soon as its update is
recorded. The last line may be torn, if the process was killed amid writing it: it is left out.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradients._rows import RecordedUpdate


@dataclass(frozen=True)
class RecordHeader:
    """What all rows of a record share."""

    objectives: list[str]
    layers: list[str]
    sizes: list[int] | None  # parameters in each layer
    attributes: dict[str, str | int | float]


def write_record(
    path: Path, header: RecordHeader, updates: Sequence[RecordedUpdate], *, overwrite: bool
) -> None:
    """Begin a file, with the rows so far.

    Raises:
        ValueError: If there is a file already that must not be overwritten.
    """
    if not overwrite and path.exists() and path.stat().st_size > 0:
        raise ValueError(
            f"`path`: expected a new file, got {str(path)!r}, which holds a record already; give "
            "another path, or resume that record by load_state_dict"
        )

    # Whole or not at all: the rows of a training before a crash must survive this, too.
    lines = [_to_line(asdict(header)), *(_to_line(_to_fields(update)) for update in updates)]
    new_path = path.with_name(path.name + ".new")
    new_path.write_text("".join(lines))
    os.replace(new_path, path)


def append_update(path: Path, update: RecordedUpdate) -> None:
    """Add one row."""
    with path.open("a") as file:
        file.write(_to_line(_to_fields(update)))


def read_record(path: Path) -> tuple[RecordHeader, list[RecordedUpdate]]:
    """Read a file, as far as it goes.

    Raises:
        ValueError: If it is no such file.
    """
    # A line without an end is torn; a file without a whole line is no record.
    lines = path.read_text().split("\n")[:-1]
    try:
        header = RecordHeader(**json.loads(lines[0]))
        updates = [_to_update(json.loads(line)) for line in lines[1:]]
    except (IndexError, TypeError, KeyError, json.JSONDecodeError):
        raise ValueError(
            f"`path`: expected a record that Trace(..., path=) wrote, got {str(path)!r}"
        ) from None
    return header, updates


def _to_line(fields: dict[str, Any]) -> str:
    return json.dumps(fields) + "\n"


def _to_fields(update: RecordedUpdate) -> dict[str, Any]:
    return {
        "step": update.step,
        "loss": update.loss.tolist(),
        "dot": update.dot.tolist(),
        "square": update.square.tolist(),
        "gradient_norm": update.gradient_norm,
    }


def _to_update(fields: dict[str, Any]) -> RecordedUpdate:
    return RecordedUpdate(
        step=fields["step"],
        loss=np.array(fields["loss"], dtype=np.float64),
        dot=np.array(fields["dot"], dtype=np.float64),
        square=np.array(fields["square"], dtype=np.float64),
        gradient_norm=fields["gradient_norm"],
    )
