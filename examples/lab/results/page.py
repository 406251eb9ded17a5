"""One page with every result: figures inside, nothing fetched, readable on a phone."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.results.files import write_atomically
from lab.results.record import read_record
from lab.results.verdicts import VERDICTS, Row, format_here, format_published
from resonance_toolkit import render_page

# Of Jinja2, which escapes every value: no name, note or log can become markup.
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Published and measured</title><style>
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
</style></head><body>
<h1>Published and measured</h1>
<p>{{ n_rows }} quantities;
{%- for verdict, number in counts.items() %} {{ verdict }}: {{ number }}
{%- if not loop.last %},{% endif %}{% endfor %}
{%- for words, number in troubles.items() %}; <span class=failed>{{ words }}: {{ number }}</span>
{%- endfor %}.</p>
<p>A number agrees if the data are the paper's data set, the budget is the paper's (epochs, images,
seeds), and the 95 % interval of our mean over seeds, in brackets, meets the published mean with its
+-. If only the last fails, it disagrees. Otherwise it is not comparable, and the reason stands
beside it.</p>
<nav>{% for part in parts %}<a href="#{{ part.name }}">{{ part.name.replace("_", " ") }}</a>
{%- endfor %}</nav>
{% for part in parts %}
<section id="{{ part.name }}"><h2>{{ part.title }}</h2>
{% if part.log is defined %}
<p class=failed>This script failed.</p><div class=table><pre>{{ part.log }}</pre></div>
{% elif part.damage is defined %}
<p class=failed>This result cannot be read: {{ part.damage }}. Run the script again.</p>
{% elif part.record is none %}
<p>No result yet.</p>
{% else %}
<p class=budget>{{ part.name.replace("_", " ") }}; budget: {{ part.record.budget }}</p>
{% for figure in part.figures %}
<figure><div class=picture {%- if figure.least_width %} tabindex=0{% endif %}><img
 src="data:image/png;base64,{{ figure.content }}" alt="{{ part.title }} ({{ figure.name }})"
{%- if figure.least_width %} style="min-width: {{ figure.least_width }}px"></div>
<figcaption>wide: scroll it sideways</figcaption>{% else %}></div>{% endif %}</figure>
{% endfor %}
<div class=table><table>
<thead><tr><th>quantity</th><th>published</th><th>here</th><th>verdict</th></tr></thead>
<tbody>
{% for row in part.rows %}
<tr><td>{{ row.quantity }}</td>
<td class="number" data-label="published">{{ row.published }}</td>
<td class="number" data-label="here">{{ row.here }}</td>
<td><span class="{{ row.css_class }}">{{ row.verdict }}</span>
{%- if row.note %}<br><small>{{ row.note }}</small>{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
</section>
{% endfor %}
</body></html>
"""

# A picture wider than this (width over height) and than a phone's screen scrolls in its box.
_WIDE = 1.6
_PHONE = 360  # pixels

# Where a PNG has its width and its height, as four bytes each.
_PNG_WIDTH = slice(16, 20)
_PNG_HEIGHT = slice(20, 24)


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
    parts: list[dict[str, Any]] = []
    damaged: list[str] = []

    for name, title in titles.items():
        part: dict[str, Any] = {"name": name, "title": title}
        parts.append(part)

        # Beside its log may lie the result of an earlier run, which is not shown.
        if name in failed:
            part["log"] = _end_of_log(folder / f"{name}.log")
            continue

        try:
            record = read_record(folder / f"{name}.json")
        except ValueError as error:
            damaged.append(name)
            part["damage"] = str(error)
            continue

        part["record"] = record
        if record is not None:
            part["figures"] = _read_figures(folder, record["figures"])
            part["rows"] = [_describe_row(row) for row in record["rows"]]

    rows = [row for part in parts for row in part.get("rows", [])]
    counts = Counter(row["verdict"] for row in rows)
    troubles = {"scripts that failed": len(failed), "results that cannot be read": len(damaged)}

    page = render_page(
        _PAGE,
        parts=parts,
        n_rows=len(rows),
        counts={verdict: counts[verdict] for verdict in VERDICTS},
        troubles={words: number for words, number in troubles.items() if number},
    )
    write_atomically({folder / "index.html": lambda path: path.write_text(page, encoding="utf-8")})
    return damaged


def _describe_row(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "quantity": row["quantity"],
        "published": format_published(Row(**row)),
        "here": format_here(Row(**row)),
        "verdict": row["verdict"],
        "css_class": row["verdict"].split()[0],
        "note": row["note"],
    }


def _read_figures(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    # Only what lies beside the table: one that someone sent may name any file of this machine.
    paths = [folder / Path(name).name for name in names]
    return [_read_figure(path) for path in paths if path.is_file()]


def _read_figure(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    width = int.from_bytes(content[_PNG_WIDTH], "big")
    height = int.from_bytes(content[_PNG_HEIGHT], "big")

    # At half its size (letters of 8 pixels) a wide picture is legible, and scrolls in its box.
    is_wide = width > _WIDE * height and width // 2 > _PHONE
    return {
        "name": path.stem,
        "content": base64.b64encode(content).decode(),
        "least_width": width // 2 if is_wide else 0,
    }


def _end_of_log(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return "\n".join(text.splitlines()[-3:])
