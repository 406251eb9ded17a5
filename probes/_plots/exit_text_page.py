from collections.abc import Sequence

import xarray as xr

from probes._plots.letters import Letters, spread_over_letters
from resonance_toolkit import render_page

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  body { font: 15px system-ui, sans-serif; color: #222; margin: 1.5em }
  pre { font: 15px/1.6 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere }
  .w { color: #c00000; font-weight: bold; text-decoration: underline }
  b span { padding: 0 .5em; font-weight: normal }
{% for colour in letters.colours %}
  .e{{ loop.index0 }} { background: {{ colour }} }
{% endfor %}
</style>
<p><b>{{ title }}</b> &nbsp;
{% for label in letters.labels %}<span class="e{{ loop.index0 }}">{{ label }}</span> {% endfor %}
{% if letters.has_truth %}<span class="w">wrong</span>{% endif %}
&nbsp; hold the pointer over a letter to see more</p>
<pre>
{%- for sign in signs -%}
<span class="{{ sign.classes }}" title="{{ sign.tooltip }}">{{ sign.shown }}</span>
{%- endfor -%}
</pre>
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
    letters = spread_over_letters(exits, text)

    confidence = exits["confidence"].values if "confidence" in exits else None
    signs = []
    for i in range(len(letters.letters)):
        token_confidence = None if confidence is None else confidence[letters.token[i]]
        signs.append(_describe_letter(letters, i, token_confidence))

    return render_page(_PAGE, title=title, letters=letters, signs=signs)


def _describe_letter(letters: Letters, i: int, confidence: float | None) -> dict[str, str]:
    exit_number = letters.exits[i]
    is_wrong = letters.is_wrong[i]

    tooltip = letters.labels[exit_number]
    if confidence is not None:
        tooltip += f", confidence {confidence:.3f}"
    if letters.has_truth:
        tooltip += ", wrong" if is_wrong else ", right"

    # A page needs no escaped dollar, but a line break after the sign for one.
    sign = letters.letters[i]
    text = sign.replace(r"\$", "$")
    if sign == "\u21b5":
        text += "\n"

    classes = f"e{exit_number}{' w' if is_wrong else ''}"
    return {"classes": classes, "tooltip": tooltip, "shown": text}
