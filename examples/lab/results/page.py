"""One page with every result: figures inside, nothing fetched, readable on a phone."""

import base64
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.results.record import read_record
from lab.results.publish import VERDICTS, shown, write_atomically

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

_WIDE = 1.6  # width over height
_PHONE = 360  # pixels


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
    records: dict[str, dict[str, Any]] = {}
    damaged, sections = [], []
    for name, title in titles.items():
        if name in failed:
            sections.append(_failure(folder, name, title))
            continue
        try:
            record = read_record(folder / f"{name}.json")
        except ValueError as error:
            damaged.append(name)
            words = f"This result cannot be read: {error}. Run the script again."
            sections.append(_headed(name, title, f"<p class=failed>{html.escape(words)}</p>"))
            continue
        sections.append(_section(folder, name, title, record))
        records |= {} if record is None else {name: record}
    rows = [row for record in records.values() for row in record["rows"]]
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{_phrase(verdict)}: {counts[verdict]}" for verdict in VERDICTS)
    told = {"scripts that failed": len(failed), "results that cannot be read": len(damaged)}
    broken = "".join(f"; <span class=failed>{w}: {n}</span>" for w, n in told.items() if n)
    links = "".join(f'<a href="#{n}">{html.escape(_name(n))}</a>' for n in titles)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Published and measured</title><style>{STYLE}</style></head><body>"
        f"<h1>Published and measured</h1><p>{len(rows)} quantities; {counted}{broken}.</p>"
        "<p>A verdict is given only at the paper's scale, or where no training budget matters: "
        "within the tolerance that stands beside it (in table 4 it is the published +-, the "
        "deviation over seeds) or, where none does, of the same sign.</p>"
        f"<nav>{links}</nav>{''.join(sections)}</body></html>\n"
    )
    write_atomically({folder / "index.html": lambda path: path.write_text(page)})
    return damaged


def _headed(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{html.escape(title)}</h2>{body}</section>'


def _section(folder: Path, name: str, title: str, record: dict[str, Any] | None) -> str:
    if record is None:
        return _headed(name, title, "<p>No result yet.</p>")
    figures = "".join(_figure(folder / picture, title) for picture in record["figures"])
    body = "".join(_row(row) for row in record["rows"])
    heads = "".join(f"<th>{head}</th>" for head in ("quantity", "published", "here", "verdict"))
    budget = html.escape(f"{_name(name)}; budget: {record['budget']}")
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    inside = f"<p class=budget>{budget}</p>{figures}<div class=table>{table}</div>"
    return _headed(name, title, inside)


def _row(row: Mapping[str, Any]) -> str:
    kind = row["verdict"].split()[0]
    note = f"<br><small>{html.escape(row['note'])}</small>" if row["note"] else ""
    values = "".join(
        f'<td class="number" data-label="{key}">{html.escape(shown(row[key]))}</td>'
        for key in ("published", "here")
    )
    verdict = f"<td><span class={kind}>{_phrase(row['verdict'])}</span>{note}</td>"
    return f"<tr><td>{html.escape(row['quantity'])}</td>{values}{verdict}</tr>"


def _figure(path: Path, title: str) -> str:
    if not path.is_file():
        return ""
    content = path.read_bytes()
    alt = html.escape(f"{title} ({path.stem})")
    source = f'src="data:image/png;base64,{base64.b64encode(content).decode()}" alt="{alt}"'
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))  # as PNG has them
    if width <= _WIDE * height or width // 2 <= _PHONE:
        return f"<figure><div class=picture><img {source}></div></figure>"
    # At half its size (letters of 8 pixels) a wide picture is legible, and scrolls in its box.
    return (
        f'<figure><div class=picture tabindex=0><img {source} style="min-width: {width // 2}px">'
        "</div><figcaption>wide: scroll it sideways</figcaption></figure>"
    )


def _failure(folder: Path, name: str, title: str) -> str:
    log = folder / f"{name}.log"
    lines = log.read_text(errors="replace").splitlines()[-3:] if log.is_file() else []
    said = html.escape("\n".join(lines))
    words = "<p class=failed>This script failed.</p>"
    return _headed(name, title, f"{words}<div class=table><pre>{said}</pre></div>")


def _phrase(verdict: str) -> str:
    return "not comparable at this budget" if verdict == "not comparable" else verdict


def _name(name: str) -> str:
    return name.replace("_", " ")
