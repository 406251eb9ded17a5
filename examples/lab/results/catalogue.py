"""Which scripts there are, and what each asks."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

NOT_RESULTS = ("quickstart", "reproduce")


def find_scripts(folder: Path, only: Sequence[str] | None = None) -> dict[str, Path]:
    """Find the scripts by name: figures, then tables, by number, then others.

    Args:
        folder: Where they are.
        only: Their names, beginnings such as "table1", or any table or figure that a script says
            it reproduces ("table7"); None for all. An unknown one ends the program with a list.
    """
    paths = sorted(folder.glob("*.py"), key=_sort_key)
    scripts = {path.stem: path for path in paths if path.stem not in NOT_RESULTS}
    if not only:
        return scripts

    chosen_scripts: dict[str, Path] = {}
    for request in only:
        # A script's own name goes first: table1 is that script, though others may mention it.
        matches = {
            name: path
            for name, path in scripts.items()
            if name == request or name.startswith(f"{request}_")
        }
        if not matches:
            matches = {
                name: path
                for name, path in scripts.items()
                if request in reproduced(question(path))
            }
        if not matches:
            sys.exit(f"--only: expected some of {', '.join(scripts)}; got {request!r}")
        chosen_scripts |= matches
    return chosen_scripts


def question(path: Path) -> str:
    """Return the first line of a script's docstring."""
    return path.read_text(encoding="utf-8").split('"""')[1].splitlines()[0]


def reproduced(title: str) -> set[str]:
    """Find the tables and figures that the first line of a docstring names.

    Examples:
        >>> sorted(reproduced("Is it so? (tables 2, 16-18; figure 3)"))
        ['figure3', 'table16', 'table17', 'table18', 'table2']
    """
    names: set[str] = set()
    for kind, numbers in re.findall(r"(table|figure)s? (\d[\d, and-]*)", title):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            names |= {f"{kind}{n}" for n in range(int(first), int(last or first) + 1)}
    return names


def _sort_key(path: Path) -> tuple[str, int, str]:
    """By kind and number for `figure5_...` and `table1_...`, then all others by name."""
    kind = path.stem.split("_")[0]
    number = "".join(filter(str.isdigit, kind))
    if not number:
        return "1", 0, path.stem
    return "0" + kind.rstrip("0123456789"), int(number), ""
