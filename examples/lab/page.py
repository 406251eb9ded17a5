"""One page with every result: figures inside, nothing fetched, readable on a phone."""

import base64
import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.report import VERDICTS, shown, write_atomically

STYLE = """
:root { color-scheme: light dark; --line: #8885; --good: #1a7f37; --bad: #c4320a; --dim: #6e7781; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
nav { columns: 16rem; padding: .5rem 0; }
nav a { display: block; padding: .15rem 0; break-inside: avoid; }
section { border-top: 1px solid var(--line); padding: .5rem 0 1.5rem; }
h1, h2, p, td { overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: .75rem 0 .25rem; }
p.budget { color: var(--dim); margin: .25rem 0 .75rem; }
figure { margin: 0 0 1rem; overflow-x: auto; }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
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
}
"""


def write_page(folder: Path, titles: Mapping[str, str], failed: Sequence[str]) -> None:
    """Gather what the scripts left in a folder into `index.html`.

    Args:
        folder: With `<name>.json` and the figures that it names.
        titles: By script, what it asks; in the order of the page.
        failed: Scripts that ended with an error; the end of their log is shown.
    """
    records = {name: _read(folder / f"{name}.json") for name in titles if name not in failed}
    sections = [
        _failure(folder, name, title) if name in failed else _section(folder, name, title, records)
        for name, title in titles.items()
    ]
    rows = [row for record in records.values() if record for row in record["rows"]]
    counts = Counter(row["verdict"] for row in rows)
    counted = ", ".join(f"{_phrase(verdict)}: {counts[verdict]}" for verdict in VERDICTS)
    broken = f"; <span class=failed>scripts that failed: {len(failed)}</span>" if failed else ""
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


def _section(
    folder: Path, name: str, title: str, records: Mapping[str, dict[str, Any] | None]
) -> str:
    record = records[name]
    if record is None:
        return f'<section id="{name}"><h2>{html.escape(title)}</h2><p>No result yet.</p></section>'
    figures = "".join(_figure(folder / picture, title) for picture in record["figures"])
    body = "".join(_row(row) for row in record["rows"])
    heads = "".join(f"<th>{head}</th>" for head in ("quantity", "published", "here", "verdict"))
    return (
        f'<section id="{name}"><h2>{html.escape(title)}</h2>'
        f"<p class=budget>{html.escape(_name(name))}; budget: {html.escape(record['budget'])}</p>"
        f"{figures}<div class=table><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table></div></section>"
    )


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
    content = base64.b64encode(path.read_bytes()).decode()
    alt = html.escape(f"{title} ({path.stem})")
    return f'<figure><img src="data:image/png;base64,{content}" alt="{alt}"></figure>'


def _failure(folder: Path, name: str, title: str) -> str:
    log = folder / f"{name}.log"
    lines = log.read_text().splitlines()[-3:] if log.is_file() else []
    said = html.escape("\n".join(lines))
    return (
        f'<section id="{name}"><h2>{html.escape(title)}</h2><p class=failed>This script failed.</p>'
        f"<div class=table><pre>{said}</pre></div></section>"
    )


def _read(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def _phrase(verdict: str) -> str:
    return "not comparable at this budget" if verdict == "not comparable" else verdict


def _name(name: str) -> str:
    return name.replace("_", " ")
