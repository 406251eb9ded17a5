"""Results that are kept in the repository, and the page of the documentation that shows them.

`keep` copies what is small; `write_results` makes the page, from the kept results and from those of
a folder, which win. A result is called by its script, or by the script, a dot and what was chosen:
`table12_cifar10.mlp`.
"""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.results.files import write_atomically
from lab.results.notes import abbreviate, letter_notes
from lab.results.record import read_record
from lab.results.verdicts import VERDICTS, Row, format_here, format_published

LARGEST = 400_000  # bytes of a file that is kept

_HEAD = """# Published and measured

<!-- Written by examples/reproduce.py --results-page; change that, not this. -->

{summary}

A number *agrees* if the data are the paper's data set (known by its content), the budget is the
paper's (epochs, images, seeds) and the 95 % interval of our mean over seeds, in brackets, meets the
published mean with its deviation. If only the last fails, it *disagrees*. In all other cases it is
*not comparable*, and the reason stands beside it. A number that is printed without a deviation
stands for all that round to it. The published change of an accuracy has no deviation of its own: it
is given that of two independent means. What is said of many rows of a table has a letter, and
stands below it.

[What the paper leaves out](recipe.md) is a page of its own.

{overview}
"""
_NOTHING = """
No result is kept yet. `python examples/reproduce.py --scale paper --keep` makes and keeps them.
"""


def keep(folder: Path, target: Path, names: Sequence[str]) -> list[Path]:
    """Copy tables, and figures and Datasets that are small, of some scripts.

    Args:
        folder: Where the scripts left them.
        target: Where they go.
        names: Of the scripts.

    Returns:
        The copies.
    """
    target.mkdir(parents=True, exist_ok=True)
    copies = []
    for path in sorted(folder.iterdir()):
        is_result = path.suffix in (".json", ".png", ".nc") and _script_of(path, names) is not None
        if is_result and path.stat().st_size <= LARGEST:
            copies.append(target / path.name)
            shutil.copyfile(path, copies[-1])
    return copies


def write_results(
    page: Path, folders: Sequence[Path], titles: Mapping[str, str], *, pictures: Path
) -> None:
    """Write the page of the results.

    Args:
        page: The file to write.
        folders: With `<name>.json`; of two results of one name, that of the later folder is shown.
        titles: By script, what it asks; in the order of the page.
        pictures: A folder beside the page, where the figures are copied.
    """
    paths: dict[str, Path] = {}
    for folder in folders:
        tables = sorted(folder.glob("*.json")) if folder.is_dir() else []
        paths |= {path.stem: path for path in tables}

    rows_by_name: dict[str, list[Row]] = {}
    sections: list[str] = []
    for script, title in titles.items():
        for name, path in paths.items():
            if _script_of(path, titles) != script:
                continue

            record = read_record(path)
            assert record is not None
            rows_by_name[name] = [Row(**entry) for entry in record["rows"]]
            copies = _copy_pictures(path.parent, record["figures"], pictures)
            sections.append(_section(name, title, record, [_link(page, copy) for copy in copies]))

    all_rows = [row for rows in rows_by_name.values() for row in rows]
    summary = f"{summarise(all_rows)} {_count_intervals(all_rows)}"
    head = _HEAD.format(summary=summary, overview=_overview(rows_by_name))
    text = head + "\n" + ("\n".join(sections) or _NOTHING)
    write_atomically({page: lambda place: place.write_text(text)})


def summarise(rows: Sequence[Row]) -> str:
    """Count what is published by its verdict.

    Examples:
        >>> summarise([Row("gain", 9.2, 8.9, "agrees"), Row("time", None, 3.0)])
        '**1 published quantity: agrees 1, disagrees 0, not comparable 0.**'
    """
    counts = Counter(row.verdict for row in rows if row.published is not None)
    total = counts.total()
    by_verdict = ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS)
    return f"**{total} published quantit{'y' if total == 1 else 'ies'}: {by_verdict}.**"


def _count_intervals(rows: Sequence[Row]) -> str:
    """Say how many verdicts rest on an interval."""
    decided = [row for row in rows if row.published is not None and row.verdict in VERDICTS[:2]]
    n_intervals = sum(row.low is not None for row in decided)
    n_others = len(decided) - n_intervals
    return f"{n_intervals} verdicts rest on an interval, {n_others} are of counts and orders."


def _overview(rows_by_name: Mapping[str, Sequence[Row]]) -> str:
    """Count the verdicts of each table."""
    lines = [("table", *VERDICTS), ("---",) * (1 + len(VERDICTS))]
    for name, rows in rows_by_name.items():
        counts = Counter(row.verdict for row in rows if row.published is not None)
        title = _title(name)
        link = f"[{title}](#{title.lower().replace(' ', '-').replace('.', '')})"
        lines.append((link, *(str(counts[verdict]) for verdict in VERDICTS)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _section(name: str, title: str, record: Mapping[str, Any], links: Sequence[str]) -> str:
    budget = f"Budget: {record['budget']}."
    command = f" Command: `{record['command']}`" if record.get("command") else ""
    version = f", version {record['version']}." if record.get("version") else "."
    lines = [f"## {_title(name)}", "", title, "", f"{budget}{command}{version}", ""]

    lines += [f"![{name}]({link})\n" for link in links]
    lines += ["| quantity | published | here | verdict |", "| --- | --- | --- | --- |"]
    rows = [Row(**entry) for entry in record["rows"]]
    letters = letter_notes(rows)
    for row in rows:
        verdict = row.verdict if row.published is not None else "-"
        note = abbreviate(row.note, letters, mark="*")
        verdict += f" ({note})" if note else ""
        cells = (row.quantity, format_published(row), format_here(row), verdict)
        lines.append("| " + " | ".join(map(_tidy, cells)) + " |")

    legend = "; ".join(f"*{letter}* {_tidy(note)}" for note, letter in letters.items())
    return "\n".join([*lines, "", *([f"{legend}.", ""] if legend else [])])


def _tidy(text: str) -> str:
    """Write text as a cell of a table may have it."""
    return text.replace("|", "/").replace("+-", "±")


def _title(name: str) -> str:
    return name.replace("_", " ")


def _script_of(path: Path, names: Mapping[str, str] | Sequence[str]) -> str | None:
    """Return the script that a result is of: `table12_cifar10.mlp.json` is of that script."""
    stem = path.name.split(".")[0]
    matches = [name for name in names if name == stem or name.startswith(f"{stem}_")]
    return matches[0] if matches else None


def _copy_pictures(folder: Path, names: Sequence[str], pictures: Path) -> list[Path]:
    copies = []
    for name in names:
        if (folder / name).is_file():
            pictures.mkdir(parents=True, exist_ok=True)
            copies.append(pictures / name)
            shutil.copyfile(folder / name, copies[-1])
    return copies


def _link(page: Path, picture: Path) -> str:
    return picture.resolve().relative_to(page.resolve().parent).as_posix()
