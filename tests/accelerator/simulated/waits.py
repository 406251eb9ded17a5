"""What the host waits for: every such moment is noted where somebody counts."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# "number": one number is read. "to_host", "to_device": memory is copied. "shape": an operator
# whose result has a size, or a decision, that depends on the values. "everything": all that the
# device was asked to do.
Kind = Literal["number", "to_host", "to_device", "shape", "everything"]

_ROOT = str(Path(__file__).parents[3])
_SIMULATION = str(Path(__file__).parent)


@dataclass
class Waits:
    """How often the host waited, by kind and by the line of ours that made it wait."""

    by_kind: Counter[str] = field(default_factory=Counter)
    by_place: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All of them."""
        return self.by_kind.total()

    def __str__(self) -> str:
        rows = [f"{n:4} {kind:9} {place}" for (kind, place), n in self.by_place.most_common()]
        return "\n".join([f"{self.total} waits", *rows])


_listeners: list[Waits] = []


@contextmanager
def counting_waits() -> Iterator[Waits]:
    """Count what the host waits for in the body."""
    waits = Waits()
    _listeners.append(waits)
    try:
        yield waits
    finally:
        _listeners.remove(waits)


def note_wait(kind: Kind) -> None:
    """Tell those who count."""
    if not _listeners:
        return

    place = _innermost_line()
    for waits in _listeners:
        waits.by_kind[kind] += 1
        waits.by_place[kind, place] += 1


def _innermost_line() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        is_ours = file.startswith(_ROOT) and ".venv" not in file
        if is_ours and not file.startswith(_SIMULATION):
            return f"{file.removeprefix(_ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"
