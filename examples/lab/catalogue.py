"""Which scripts there are, and what each asks."""

import sys
from collections.abc import Sequence
from pathlib import Path

NOT_RESULTS = ("quickstart", "reproduce")


def find_scripts(folder: Path, only: Sequence[str] | None = None) -> dict[str, Path]:
    """The scripts by name: figures, then tables, by number, then others.

    Args:
        folder: Where they are.
        only: Their names, or beginnings such as "table1"; None for all. An unknown one ends the
            program with a list.
    """
    paths = sorted(folder.glob("*.py"), key=_in_order)
    scripts = {path.stem: path for path in paths if path.stem not in NOT_RESULTS}
    chosen: dict[str, Path] = {}
    for wanted in only or ():
        found = {n: p for n, p in scripts.items() if n == wanted or n.startswith(f"{wanted}_")}
        if not found:
            sys.exit(f"--only: expected some of {', '.join(scripts)}; got {wanted!r}")
        chosen |= found
    return chosen if only else scripts


def question(path: Path) -> str:
    """The first line of a script's docstring."""
    return path.read_text().split('"""')[1].splitlines()[0]


def _in_order(path: Path) -> tuple[str, int, str]:
    kind = path.stem.split("_")[0]
    number = "".join(filter(str.isdigit, kind))
    return ("0" + kind.rstrip("0123456789"), int(number), "") if number else ("1", 0, path.stem)
