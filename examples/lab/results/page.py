"""One page with every result: figures inside, nothing fetched, readable on a phone."""

import base64
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.results.files import write_atomically
from lab.results.record import read_record
from lab.results.verdicts import VERDICTS, Row, format_here, format_published

STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #c4320a; --dim: #6e7781; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
nav { columns: 16rem; padding: .5rem 0; }
nav a { display: block; padding: .15rem 0; break-inside: avoid; }
section { border-top: 1px solid var(--line); padding: .5rem 0 1.5rem; }
h1, h2, p, td { overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: .75rem 0 .25rem; }
p.budget { color: var(--dim); margin: .25rem 0 .75rem; }
figure { margin: 0 0 1rem; }
figcaption { display: none; color: var(--dim); font-size: .8rem; }
.picture { overflow-x: auto; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; min-width: 34rem; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); }
td { min-width: 8rem; vertical-align: top; } td.number { font-variant-numeric: tabular-nums; }
.agrees { color: var(--good); } .disagrees, .failed { color: var(--bad); }
.not { color: var(--dim); } small { color: var(--dim); }
@media (max-width: 40rem) {
  table { min-width: 0; width: 100%; } thead { display: none; }
  tr { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 .7rem; }
  tr, td { border: 0; } tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  td { padding: .1rem 0; min-width: 0; }
  td:first-child, td:last-child { grid-column: 1 / -1; } td:first-child { font-weight: 600; }
  td.number::before { content: attr(data-label) ": "; color: var(--dim); }
  figcaption { display: block; }
}
"""

# A picture wider than this (width over height) and than a phone's screen scrolls in its box.
_WIDE = 1.6
_PHONE = 360  # pixels

# Where a PNG has its width and its height, as four bytes each.
_PNG_WIDTH = slice(16, 20)
_PNG_HEIGHT = slice(20, 24)

_RULE = (
    "<p>A number agrees if the data are the paper's data set, the budget is the paper's (epochs, "
    "images, seeds), and the 95 % interval of our mean over seeds, in brackets, meets the "
    "published mean with its +-. If only the last fails, it disagrees. Otherwise it is not "
    "comparable, and the reason stands beside it.</p>"
)


def write_page(folder: Path, titles: Mapping[str, str], failed: Sequence[str]) -> list[str]:
    """Gather what the scripts left in a folder into `index.html`.

    A result that cannot be read is reported in its place.

    Args:
        folder: With `<name>.json` and the figures that it names.
        titles: By script, what it asks; in the order of the page.
        failed: Scripts that ended with an error; the end of their log is shown.

    Returns:
        The names of damaged results.
    """
    rows: list[dict[str, Any]] = []
    sections: list[str] = []
    damaged: list[str] = []

    for name, title in titles.items():
        # Beside its log may lie the result of an earlier run, which is not shown.
        if name in failed:
            sections.append(_failure_section(folder, name, title))
            continue

        try:
            record = read_record(folder / f"{name}.json")
        except ValueError as error:
            damaged.append(name)
            words = f"This result cannot be read: {error}. Run the script again."
            sections.append(_section(name, title, f"<p class=failed>{html.escape(words)}</p>"))
            continue

        sections.append(_result_section(folder, name, title, record))
        rows += [] if record is None else record["rows"]

    summary = _summarise(rows, n_failed=len(failed), n_damaged=len(damaged))
    links = "".join(f'<a href="#{name}">{html.escape(_spaced(name))}</a>' for name in titles)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Published and measured</title><style>{STYLE}</style></head><body>"
        f"<h1>Published and measured</h1><p>{summary}</p>{_RULE}"
        f"<nav>{links}</nav>{''.join(sections)}</body></html>\n"
    )
    write_atomically({folder / "index.html": lambda path: path.write_text(page, encoding="utf-8")})
    return damaged


def _summarise(rows: Sequence[Mapping[str, Any]], *, n_failed: int, n_damaged: int) -> str:
    counts = Counter(row["verdict"] for row in rows)
    verdicts = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in VERDICTS)

    troubles = {"scripts that failed": n_failed, "results that cannot be read": n_damaged}
    warnings = "".join(
        f"; <span class=failed>{words}: {number}</span>"
        for words, number in troubles.items()
        if number
    )
    return f"{len(rows)} quantities; {verdicts}{warnings}."


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{html.escape(title)}</h2>{body}</section>'


def _result_section(folder: Path, name: str, title: str, record: dict[str, Any] | None) -> str:
    if record is None:
        return _section(name, title, "<p>No result yet.</p>")

    figures = "".join(_figure(folder / picture, title) for picture in record["figures"])
    budget = html.escape(f"{_spaced(name)}; budget: {record['budget']}")

    heads = "".join(f"<th>{head}</th>" for head in ("quantity", "published", "here", "verdict"))
    rows = "".join(_table_row(row) for row in record["rows"])
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"

    body = f"<p class=budget>{budget}</p>{figures}<div class=table>{table}</div>"
    return _section(name, title, body)


def _table_row(row: Mapping[str, Any]) -> str:
    texts = {"published": format_published(Row(**row)), "here": format_here(Row(**row))}
    values = "".join(
        f'<td class="number" data-label="{key}">{html.escape(text)}</td>'
        for key, text in texts.items()
    )

    css_class = row["verdict"].split()[0]
    note = f"<br><small>{html.escape(row['note'])}</small>" if row["note"] else ""
    verdict = f"<td><span class={css_class}>{row['verdict']}</span>{note}</td>"
    return f"<tr><td>{html.escape(row['quantity'])}</td>{values}{verdict}</tr>"


def _figure(path: Path, title: str) -> str:
    if not path.is_file():
        return ""

    content = path.read_bytes()
    alt = html.escape(f"{title} ({path.stem})")
    source = f'src="data:image/png;base64,{base64.b64encode(content).decode()}" alt="{alt}"'

    width = int.from_bytes(content[_PNG_WIDTH], "big")
    height = int.from_bytes(content[_PNG_HEIGHT], "big")
    if width <= _WIDE * height or width // 2 <= _PHONE:
        return f"<figure><div class=picture><img {source}></div></figure>"

    # At half its size (letters of 8 pixels) a wide picture is legible, and scrolls in its box.
    return (
        f'<figure><div class=picture tabindex=0><img {source} style="min-width: {width // 2}px">'
        "</div><figcaption>wide: scroll it sideways</figcaption></figure>"
    )


def _failure_section(folder: Path, name: str, title: str) -> str:
    log = folder / f"{name}.log"
    last_lines = log.read_text(errors="replace").splitlines()[-3:] if log.is_file() else []
    excerpt = html.escape("\n".join(last_lines))

    words = "<p class=failed>This script failed.</p>"
    return _section(name, title, f"{words}<div class=table><pre>{excerpt}</pre></div>")


def _spaced(name: str) -> str:
    return name.replace("_", " ")
