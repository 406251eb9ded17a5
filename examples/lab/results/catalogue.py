"""Which scripts there are, and what each asks."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

NOT_RESULTS = ("quickstart", "reproduce")


def find_scripts(folder: Path, only: Sequence[str] | None = None) -> dict[str, Path]:
    """The scripts by name: figures, then tables, by number, then others.

    Args:
        folder: Where they are.
        only: Their names, beginnings such as "table1", or any table or figure that a script says
            it reproduces ("table7"); None for all. An unknown one ends the program with a list.
    """
    paths = sorted(folder.glob("*.py"), key=_in_order)
    scripts = {path.stem: path for path in paths if path.stem not in NOT_RESULTS}
    chosen: dict[str, Path] = {}
    for wanted in only or ():
        found = {n: p for n, p in scripts.items() if n == wanted or n.startswith(f"{wanted}_")}
        found = found or {n: p for n, p in scripts.items() if wanted in reproduced(question(p))}
        if not found:
            sys.exit(f"--only: expected some of {', '.join(scripts)}; got {wanted!r}")
        chosen |= found
    return chosen if only else scripts


def question(path: Path) -> str:
    """The first line of a script's docstring."""
    return path.read_text().split('"""')[1].splitlines()[0]


def reproduced(title: str) -> set[str]:
    """The tables and figures that the first line of a docstring names.

    Examples:
        >>> sorted(reproduced("Is it so? (tables 2, 16-18; figure 3)"))
        ['figure3', 'table16', 'table17', 'table18', 'table2']
    """
    found: set[str] = set()
    for kind, numbers in re.findall(r"(table|figure)s? (\d[\d, and-]*)", title):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            found |= {f"{kind}{n}" for n in range(int(first), int(last or first) + 1)}
    return found


def _in_order(path: Path) -> tuple[str, int, str]:
    kind = path.stem.split("_")[0]
    number = "".join(filter(str.isdigit, kind))
    return ("0" + kind.rstrip("0123456789"), int(number), "") if number else ("1", 0, path.stem)
