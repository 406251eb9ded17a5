import html
from collections.abc import Sequence

import xarray as xr

from probes._plots.letters import letters

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>@TITLE@</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  body { font: 15px system-ui, sans-serif; color: #222; margin: 1.5em }
  pre { font: 15px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
  .w { color: #c00000; font-weight: bold; text-decoration: underline }
  b span { padding: 0 .5em; font-weight: normal }
@STYLES@</style>
<p><b>@TITLE@</b> &nbsp; @LEGEND@ &nbsp; hold the pointer over a letter to see more</p>
<pre>@TEXT@</pre>
</html>
"""


def html_exit_text(
    exits: xr.Dataset, text: Sequence[str], *, title: str = "Where each token left"
) -> str:
    """The picture of `plot_exit_text` as one self-contained page, for longer texts.

    Args:
        exits: One sequence: a sample of `probes.generate`, or some tokens of an exit map.
        text: One string for each token.
        title: Above the text.

    Returns:
        The page; write it to a file. Holding the pointer over a letter shows what was measured.

    Raises:
        ValueError: If `exits` is none of these, or `text` has another length.
    """
    found = letters(exits, text)
    styles = "".join(f"  .e{i} {{ background: {v} }}\n" for i, v in enumerate(found.colours))
    legend = [f'<span class="e{i}">{html.escape(v)}</span>' for i, v in enumerate(found.labels)]
    if found.knows:
        legend.append('<span class="w">wrong</span>')
    sure = exits["confidence"].values if "confidence" in exits else None
    body = []
    for letter, exit_, wrong, token in zip(
        found.letters, found.exits, found.wrong, found.token, strict=True
    ):
        words = found.labels[exit_] + (
            f", confidence {sure[token]:.3f}" if sure is not None else ""
        )
        words += (", wrong" if wrong else ", right") if found.knows else ""
        shown = html.escape(letter.replace(r"\$", "$"))
        shown += "\n" if letter == "\u21b5" else ""
        body.append(f'<span class="e{exit_}{" w" if wrong else ""}" title="{words}">{shown}</span>')
    parts = {"TITLE": html.escape(title), "STYLES": styles, "LEGEND": " ".join(legend)}
    page = _PAGE
    for name, value in (parts | {"TEXT": "".join(body)}).items():
        page = page.replace(f"@{name}@", value)
    return page
