"""Where our names lead: to us, to a file of the user's, or to another distribution's."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import packages_distributions
from pathlib import Path

import resonance_toolkit
from resonance_toolkit._base.instruments import INSTRUMENTS, load_instrument, say_overwritten

NAMES = (*INSTRUMENTS, "resonance", "resonance_toolkit")

_OURS = Path(resonance_toolkit.__file__).parents[1]


@dataclass(frozen=True)
class Name:
    """One import name, where ours is, and what is in its way, with the cure."""

    name: str
    place: Path
    troubles: tuple[str, ...]


def look_up_names(folder: Path) -> list[Name]:
    """Find what is in the way of each of our names, for a script that lies in a folder."""
    distributions = packages_distributions()
    return [_look_up(name, folder, distributions) for name in NAMES]


def _look_up(name: str, folder: Path, distributions: Mapping[str, Sequence[str]]) -> Name:
    place = _OURS / name / "__init__.py"
    troubles = []

    neighbour = _find_stranger(name, [str(folder)])
    if neighbour is not None:
        troubles.append(
            f"for scripts in this folder `import {name}` gives {neighbour}; rename it, or start "
            "them elsewhere"
        )

    # What comes after us on the path is in nobody's way.
    path_entries = [entry for entry in sys.path if entry not in ("", str(folder))]
    entries = [str(Path(entry).resolve()) for entry in path_entries]
    before_us = entries[: entries.index(str(_OURS))] if str(_OURS) in entries else entries
    stranger = _find_stranger(name, before_us)
    if stranger is not None:
        troubles.append(
            f"`import {name}` gives {stranger}, which comes first on the path; rename it, or take "
            "its folder off PYTHONPATH"
        )

    rivals = sorted(set(distributions.get(name, ())) - {"resonance-toolkit"})
    if rivals:
        troubles.append(_say_rivals(name, rivals, stranger))
    return Name(name, place, tuple(troubles))


def _find_stranger(name: str, entries: list[str]) -> Path | None:
    """Find a file of that name which is not ours; a folder without `__init__` is none."""
    spec = PathFinder.find_spec(name, entries)
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    is_ours = os.path.realpath(origin) == os.path.realpath(_OURS / name / "__init__.py")
    return None if is_ours else origin


def _say_rivals(name: str, rivals: list[str], stranger: Path | None) -> str:
    place = _OURS / name / "__init__.py"
    if name in INSTRUMENTS and stranger is None:
        try:
            load_instrument(name)
        except ImportError as error:
            return str(error)
    elif name == "resonance" and "import resonance_toolkit" not in place.read_text("utf-8"):
        return say_overwritten(name, place)

    return (
        f"the distribution {' and '.join(rivals)} has `{name}` too; pip overwrites one by the "
        f"other, and uninstalling either removes both: pip uninstall {' '.join(rivals)}, then "
        "pip install --force-reinstall --no-deps resonance-toolkit"
    )
