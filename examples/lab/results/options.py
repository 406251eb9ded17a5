"""The command line that the scripts share."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lab.results.files import is_first_process
from resonance_toolkit import text_table

SCALES = ("smoke", "cpu", "paper")


def arguments(doc: str | None, *, output: str) -> argparse.ArgumentParser:
    """Make the parser of a script, with the options that all have; it may add its own.

    Args:
        doc: The script's docstring.
        output: Where its Dataset goes by default.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scale", choices=SCALES, default="smoke", help="seconds, minutes, or the paper's recipe"
    )
    parser.add_argument(
        "--data",
        help="digits, cifar10, cifar100, fashion-mnist, an .npz, or a folder of class folders; "
        "digits at --scale smoke, else the paper's, by default",
    )
    parser.add_argument("--output", type=Path, default=Path(output), help="the .nc to write")
    parser.add_argument("--seeds", type=at_least_one, help="how many seeds, from 42 on")
    parser.add_argument("--cache", type=Path, default=Path("results/cache"), help="finished runs")
    add_show_recipe(parser)

    executors = parser.add_mutually_exclusive_group()
    executors.add_argument("--processes", type=at_least_one, help="run on so many processes")
    executors.add_argument("--dask", metavar="ADDRESS", help="run on this Dask scheduler")
    return parser


def add_show_recipe(parser: argparse.ArgumentParser) -> None:
    """Add `--show-recipe`, which a script honours by `exit_showing`."""
    parser.add_argument(
        "--show-recipe", action="store_true", help="print the settings of every run, and end"
    )


def at_least_one(text: str) -> int:
    """For argparse: a whole number above zero."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def exit_showing(runs: Sequence[Mapping[str, object]]) -> NoReturn:
    """Print the settings of the runs that a script would make, and end the program.

    Args:
        runs: For each run its settings by name; all have the same names.
    """
    if is_first_process():
        print(format_runs(runs))
    sys.exit(0)


def format_runs(runs: Sequence[Mapping[str, object]]) -> str:
    """Write settings as text: those that all runs share, then a table of those that vary.

    Runs with the same settings are one run, as they are in a sweep.

    Examples:
        >>> print(format_runs([{"epochs": 3, "n": 0}, {"epochs": 3, "n": 20}]))
        2 runs, all with
            epochs  3
        and each with
            n
            0
            20
    """
    # As texts, which can be compared whatever the settings are.
    rows = list(dict.fromkeys(tuple(map(_format_setting, run.values())) for run in runs))
    columns = dict(zip(runs[0], zip(*rows, strict=True), strict=True))

    shared = [(name, values[0]) for name, values in columns.items() if len(set(values)) == 1]
    varying = [(name, *values) for name, values in columns.items() if len(set(values)) > 1]

    number = "1 run" if len(rows) == 1 else f"{len(rows)} runs, all"
    lines = [f"{number} with", *_indent(text_table(shared))]
    if varying:
        lines += ["and each with", *_indent(text_table(list(zip(*varying, strict=True))))]
    return "\n".join(lines)


def _format_setting(value: object) -> str:
    return "''" if value == "" else str(value)  # an empty text would look like a gap


def _indent(table: str) -> list[str]:
    return [f"    {line}" for line in table.splitlines()]
