"""What the template shows, in the order in which it shows it; nothing here computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from resonance_toolkit._front.page.numbers import Number


@dataclass(frozen=True)
class Picture:
    """A figure as markup, made by `svg` and nothing else.

    Args:
        svg: Safe to be put into a page.
        caption: Below it.
        heading: Above it, where several runs stand side by side.
    """

    svg: Any
    caption: str = ""
    heading: str = ""


@dataclass(frozen=True)
class Section:
    """One part: its picture, its numbers, what they mean, how to repeat it."""

    key: str
    title: str
    question: str = ""
    lead: str = ""
    status: str = "done"
    reason: str = ""
    pictures: Sequence[Picture] = ()
    surface: dict[str, Any] | None = None
    numbers: Sequence[Number] = ()
    meanings: Sequence[str] = ()
    setup: str = ""
    call: str = ""
    attributes: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class PartRow:
    """Where the time went: one part."""

    key: str
    title: str
    status: str
    reason: str
    seconds: float
    share: float  # of the longest part


@dataclass(frozen=True)
class Verdict:
    """The answer.

    Args:
        word: "synergy", "conflict", "incoherent" or "undecided".
        sentence: In plain words, with numbers.
        rule: How it is decided.
        remedy: What would change it.
        measure: Of what the interval is.
        low: Lower end of the interval.
        high: Upper end.
        scale: Places along the bar, in percent: of both ends, and of zero.
    """

    word: str
    sentence: str
    rule: str
    remedy: str
    measure: str
    low: float
    high: float
    scale: tuple[float, float, float] | None

    @property
    def unit(self) -> str:
        """Of what the interval is shown in."""
        return "percentage points of held-out accuracy" if self.measure == "accuracy" else ""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval as it is shown: an accuracy is a share in the tree."""
        factor = 100 if self.measure == "accuracy" else 1
        return factor * self.low, factor * self.high


@dataclass(frozen=True)
class Column:
    """A column of a sortable table."""

    title: str
    note: str = ""
    is_text: bool = False


@dataclass(frozen=True)
class Table:
    """A sortable table: cells are words or numbers, NaN where there is nothing."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | float]]

    @property
    def notes(self) -> dict[str, str]:
        """What columns mean, by their titles; columns that mean the same stand together."""
        titles: dict[str, list[str]] = {}
        for column in self.columns:
            if column.note:
                titles.setdefault(column.note, []).append(column.title)
        return {"; ".join(names): note for note, names in titles.items()}


@dataclass(frozen=True)
class Run:
    """One of several runs, in the table on top."""

    name: str
    verdict: Verdict | None


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    subtitle: str = ""
    introduction: str = ""
    verdict: Verdict | None = None
    facts: Sequence[tuple[str, str]] = ()
    words: Sequence[tuple[str, str]] = ()
    runs: Sequence[Run] = ()
    comparison: Table | None = None
    parts: Sequence[PartRow] = ()
    total_seconds: float = 0.0
    preparation_seconds: float = 0.0
    layers: Table | None = None
    sections: Sequence[Section] = ()
    footer: Sequence[str] = field(default_factory=list)
