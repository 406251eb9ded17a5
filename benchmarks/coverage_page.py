"""The page of what works where: counts first, then one row per model, then what was said."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coverage_instruments import INSTRUMENTS, Cell, Outcome

_OUTCOMES: tuple[Outcome, ...] = ("works", "refused", "not applicable", "failed")
_MARKS = {"works": "yes", "refused": "refused", "not applicable": "-", "failed": "**fails**"}
_LONGEST_SENTENCE = 400

_INTRODUCTION = """\
# Which models work

Every instrument, tried on one small model of every module of timm, of every family of torchvision's
classifiers, segmentation and video models, and of many architectures of transformers, with random
weights and the ecosystem's own batches: images with classes or pixel labels, clips, and mappings
with `labels`. No layer, block or loss is named: all is found. Made by
`python benchmarks/bench_coverage.py`.

- **yes**: it ends, its numbers are finite, and losses of landscapes and nudges are the model's own
  (single blocks or layers may be NaN, if not all are; exits are looked at by one measure);
- **refused**: it says why not, in the sentence of the note, as an error or as a warning beside NaN;
- **-**: there is nothing to measure, as the sentence of the note has it: attention without a
  softmax, an early exit through a head that reads layers of another shape, or after one layer that
  runs several times; a nudge of tensors that have no say in the loss;
- **fails**: an error that says nothing to a user, or a wrong number: a fault of ours.
"""


@dataclass(frozen=True)
class Row:
    """One model and what came of it; or why it was not tried, in `skipped`."""

    library: str
    family: str
    model: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    skipped: str = ""

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> "Row":
        """Undo `dataclasses.asdict`."""
        cells = {name: Cell(**cell) for name, cell in entry["cells"].items()}
        return cls(**{**entry, "cells": cells})

    def summary(self) -> str:
        """One line to watch the progress by."""
        if self.skipped:
            return f"skipped, {self.skipped}"
        outcomes = [f"{name} {cell.outcome}" for name, cell in self.cells.items()]
        return f"{self.model}: {', '.join(outcomes)}"


class _Notes:
    """Sentences in order of appearance, each with a number; those that differ in names are one."""

    def __init__(self) -> None:
        self.sentences: dict[str, str] = {}

    def number(self, sentence: str) -> int:
        kind = re.sub(r"'[^']*'|\(.*?\)|\d+", "_", sentence)
        self.sentences.setdefault(kind, sentence)
        return list(self.sentences).index(kind) + 1


def write_page(rows: Iterable[Row]) -> str:
    """Make the page in Markdown, the same from the same rows."""
    rows = list(rows)
    libraries = list(dict.fromkeys(row.library for row in rows))
    notes = _Notes()

    parts = [_INTRODUCTION, _count_table(rows, libraries)]
    for library in libraries:
        own_rows = [row for row in rows if row.library == library]
        parts += [f"## {library}\n", _model_table(own_rows, notes), _skipped_list(own_rows)]

    parts += ["## Notes\n", _note_list(notes)]
    return "\n".join(part for part in parts if part)


def _count_table(rows: list[Row], libraries: list[str]) -> str:
    lines = [
        "## Counts\n",
        f"| library | instrument | {' | '.join(_MARKS[outcome] for outcome in _OUTCOMES)} |",
        f"| --- | --- |{' ---: |' * len(_OUTCOMES)}",
    ]
    for library in libraries:
        tried = [row for row in rows if row.library == library and row.cells]
        for instrument in INSTRUMENTS:
            outcomes = [row.cells[instrument].outcome for row in tried]
            counts = " | ".join(str(outcomes.count(outcome)) for outcome in _OUTCOMES)
            lines.append(f"| {library}, {len(tried)} models | `{instrument}` | {counts} |")
    return "\n".join(lines) + "\n"


def _model_table(rows: list[Row], notes: _Notes) -> str:
    lines = [
        f"| family | model | {' | '.join(f'`{name}`' for name in INSTRUMENTS)} |",
        f"| --- | --- |{' --- |' * len(INSTRUMENTS)}",
    ]
    for row in rows:
        if row.cells:
            cells = " | ".join(_show(row.cells[name], notes) for name in INSTRUMENTS)
            lines.append(f"| {row.family} | {row.model} | {cells} |")
    return "\n".join(lines) + "\n"


def _show(cell: Cell, notes: _Notes) -> str:
    mark = _MARKS[cell.outcome]
    return f"{mark} ({notes.number(cell.sentence)})" if cell.sentence else mark


def _skipped_list(rows: list[Row]) -> str:
    skipped = [row for row in rows if row.skipped]
    if not skipped:
        return ""
    lines = [f"- {row.model or row.family}: {row.skipped}" for row in skipped]
    return (
        "Not tried here (seconds depend on the machine and on what else it does):\n\n"
        + "\n".join(lines)
        + "\n"
    )


def _note_list(notes: _Notes) -> str:
    lines = []
    for number, sentence in enumerate(notes.sentences.values(), start=1):
        shown = sentence
        if len(shown) > _LONGEST_SENTENCE:
            shown = f"{shown[:_LONGEST_SENTENCE]} ..."

        # Brackets of a sentence are no links, nor are its stars and angles any markup.
        shown = re.sub(r"([\[\]*<>_])", r"\\\1", shown)
        lines.append(f"{number}. {shown}")
    return "\n".join(lines) + "\n"
