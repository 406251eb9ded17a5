"""The end of every script: its Dataset, figures and table written, and the table printed."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import xarray as xr
from matplotlib.figure import Figure

from lab.results.files import Writer, dataset_writer, is_first_process, write_atomically
from lab.results.notes import abbreviate, letter_notes
from lab.results.verdicts import Row, Value, format_here, format_published
from resonance_toolkit import provenance, text_table

# Options of places, which differ from machine to machine and decide nothing.
_PLACES = ("--output", "--cache")


def publish(
    result: xr.Dataset,
    figure: Figure | Mapping[str, Figure],
    rows: Sequence[Row],
    *,
    output: Path,
    budget: str,
) -> None:
    """Write Dataset (.nc), figure (.png, .pdf) and rows (.json), and print the rows.

    All files are complete before the first appears under its name: if writing fails (a full disk),
    what was there before is still there. The .nc comes last. Of the processes that
    `accelerate launch` starts, only the first writes and prints.

    Args:
        result: What was measured.
        figure: The figure, or several by name: "" is the first, others are put between stem and
            suffix (`table5.layers.png`).
        rows: Published quantities beside ours.
        output: The .nc path; the other files lie beside it.
        budget: What was spent, in words.
    """
    if not is_first_process():
        return

    figures = dict(figure) if isinstance(figure, Mapping) else {"": figure}
    writers: dict[Path, Writer] = {}
    for name, each_figure in figures.items():
        middle = f".{name}" if name else ""
        for kind in ("png", "pdf"):
            path = output.with_suffix(f"{middle}.{kind}")
            writers[path] = _figure_writer(each_figure, kind)

    pictures = [path.name for path in writers if path.suffix == ".png"]
    record = {
        "budget": budget,
        "command": command_line(sys.argv),
        "version": provenance("lab.publish")["toolkit_version"],
        "figures": pictures,
        "rows": [_jsonable(row) for row in rows],
    }
    text = json.dumps(record, indent=1, allow_nan=False)
    writers[output.with_suffix(".json")] = lambda path: path.write_text(text, encoding="utf-8")

    # Files are renamed in this order: where there is an .nc, all else is there too.
    writers[output] = dataset_writer(result.assign_attrs(budget=budget))
    write_atomically(writers)

    print_table(rows, budget)
    print(f"wrote {output}, and {', '.join(pictures)} beside it")


def command_line(arguments: Sequence[str]) -> str:
    """Write a command so that it can be repeated elsewhere: names of files without their folders.

    Args:
        arguments: As in `sys.argv`; empty if no script of this folder is running.

    Examples:
        >>> command_line(["examples/table9.py", "--data", "/a/cifar10.npz", "--output", "/a/b.nc"])
        'python examples/table9.py --data cifar10.npz'
        >>> command_line(["/usr/bin/pytest", "-q"])
        ''
    """
    script, *options = arguments
    if Path(script).resolve().parent.name != "examples":
        return ""

    words = ["python", f"examples/{Path(script).name}"]
    is_place = False
    for option in options:
        name, equals, value = option.partition("=")
        if is_place or name in _PLACES:
            is_place = not is_place and not equals
            continue
        words.append(f"{name}{equals}{Path(value).name}" if equals else Path(option).name)
    return " ".join(words)


def print_table(rows: Sequence[Row], budget: str) -> None:
    """Print the budget, notes that many rows share, then quantities with their verdicts."""
    print(f"budget: {budget}")
    letters = letter_notes(rows)
    for note, letter in letters.items():
        print(f"{letter}: {note}")

    lines = [("", "published", "here", "verdict")]
    for row in rows:
        note = abbreviate(row.note, letters)
        verdict = f"{row.verdict} ({note})" if note else row.verdict
        lines.append((row.quantity, format_published(row), format_here(row), verdict))

    print(text_table(lines, separator=" | "))


def _figure_writer(figure: Figure, kind: str) -> Writer:
    # Without a date the same figure gives the same file.
    metadata = {"CreationDate": None} if kind == "pdf" else None
    return lambda path: figure.savefig(path, format=kind, dpi=120, metadata=metadata)


def _jsonable(row: Row) -> dict[str, Value]:
    # Strict JSON has neither NaN nor infinity.
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }
