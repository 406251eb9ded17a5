import base64
from collections.abc import Sequence

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from resonance_toolkit import check_whole, render_page

_MOST_WEIGHTS = 30_000_000  # of a page: a byte each, which a browser still opens
_STEPS = 254  # of the square root of a weight; the byte 255 stands for none
_TOP = 3  # tokens named in the table
_SIGNS = str.maketrans({"\n": "\u21b5", "\r": "\u21b5", "\t": "\u2192"})

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  :root { color-scheme: light dark; --ink: #222; --paper: #fff; --tint: 214, 96, 20;
          --line: #bbb; --mark: #0b57d0 }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e6e6e6; --paper: #181818; --tint: 226, 112, 38; --line: #555; --mark: #8ab4f8 }
  }
  body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
         margin: 1.2em; overflow-wrap: anywhere }
  h1 { font-size: 1.2em; margin: 0 0 .6em }
  label { margin-right: 1em; white-space: nowrap }
  select { font: inherit; max-width: 60vw }
  #text { font: 16px/2 ui-monospace, monospace; white-space: pre-wrap; margin: .8em 0 }
  #text span { unicode-bidi: isolate; padding: .15em .1em; border-radius: .2em;
               border-bottom: 1px solid var(--line) }
  .live span { cursor: pointer }
  #text .here { outline: 2px solid var(--mark); outline-offset: -1px }
  #said { min-height: 3em }
  table { border-collapse: collapse; margin-top: .6em }
  td, th { border-bottom: 1px solid var(--line); padding: .15em .7em .15em 0; text-align: left;
           vertical-align: top; font-weight: normal }
  td, #said b { font-family: ui-monospace, monospace; white-space: pre-wrap;
                unicode-bidi: isolate }
  .wide { overflow-x: auto }
</style>
<h1>{{ title }}</h1>
<div id="choices" hidden>
  <label>layer <select id="layer"><option value="-1">mean of all layers</option>
  {% for name in layers %}<option value="{{ loop.index0 }}">{{ name }}</option>
  {% endfor %}</select></label>
  <label>head <select id="head"><option value="-1">mean of all heads</option>
  {% for name in heads %}<option value="{{ loop.index0 }}">{{ name }}</option>
  {% endfor %}</select></label>
  <label>direction <select id="way"><option value="to">where a token looks</option>
  <option value="from">which tokens look at it</option></select></label>
</div>
<div id="text">
{%- for token in tokens -%}
<span data-i="{{ loop.index0 }}">{{ token.shown }}</span>{{ token.after }}
{%- endfor -%}
</div>
<p id="said" aria-live="polite">The table below says where each token looks most.</p>
<details{{ " open" if tokens | length <= 40 else "" }}>
<summary>Where each token looks most: means of all layers and heads</summary>
<div class="wide"><table>
<tr><th>token</th><th>looks at</th></tr>
{% for row in rows %}<tr><td>{{ loop.index0 }} {{ row.token }}</td><td>{{ row.text }}</td></tr>
{% endfor %}</table></div></details>
<script>
"use strict";
const data = {{ data | tojson }};
const bytes = Uint8Array.from(atob(data.weights), sign => sign.charCodeAt(0));
const [nLayers, nHeads, n] = data.shape;
const spans = [...document.querySelectorAll("#text span")];
const pick = id => document.getElementById(id);
const said = pick("said");
let chosen = data.first, held = false;
function weight(layer, head, query, key) {
  const byte = bytes[((layer * nHeads + head) * n + query) * n + key];
  return byte === 255 ? NaN : (byte / data.steps) ** 2;
}
function mean(query, key) {
  const layer = +pick("layer").value, head = +pick("head").value;
  let sum = 0, count = 0;
  for (let l = layer < 0 ? 0 : layer; l < (layer < 0 ? nLayers : layer + 1); l++)
    for (let h = head < 0 ? 0 : head; h < (head < 0 ? nHeads : head + 1); h++) {
      const value = weight(l, h, query, key);
      if (!Number.isNaN(value)) { sum += value; count++; }
    }
  return count ? sum / count : NaN;
}
function name(i) {
  const part = document.createElement("b");
  part.textContent = data.tokens[i];
  return part;
}
function paint() {
  const looks = pick("way").value === "to";
  const values = spans.map((_, i) => looks ? mean(chosen, i) : mean(i, chosen));
  const known = values.filter(value => !Number.isNaN(value));
  const most = Math.max(...known, 1e-9);
  spans.forEach((span, i) => {
    const share = Number.isNaN(values[i]) ? 0 : values[i] / most;
    span.style.backgroundColor = share ? `rgba(var(--tint), ${(0.75 * share).toFixed(3)})` : "";
    span.classList.toggle("here", i === chosen);
    span.setAttribute("aria-pressed", i === chosen ? "true" : "false");
    span.tabIndex = i === chosen ? 0 : -1;
  });
  said.replaceChildren(`token ${chosen} `, name(chosen));
  if (!known.length) { said.append(": nothing was recorded"); return; }
  said.append(looks ? " looks at " : " is looked at by ");
  const order = values.map((value, i) => [value, i]).filter(pair => !Number.isNaN(pair[0]));
  order.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  order.slice(0, 5).forEach(([value, i], place) => {
    said.append(place ? ", " : "", name(i), ` (${i}) ${value.toFixed(3)}`);
  });
  said.append(`; full colour is ${most.toFixed(3)}, uniform attention ${(1 / n).toFixed(3)}`);
}
function choose(i) { chosen = i; paint(); }
pick("choices").hidden = false;
pick("text").className = "live";
spans.forEach((span, i) => {
  span.setAttribute("role", "button");
  span.onpointerenter = event => { if (event.pointerType === "mouse" && !held) choose(i); };
  span.onclick = () => { held = !(held && i === chosen); choose(i); };
  span.onkeydown = event => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.min(n - 1, Math.max(0, i + step));
    choose(next); spans[next].focus();
  };
});
for (const id of ["layer", "head", "way"]) pick(id).onchange = paint;
paint();
</script>
</html>
"""


def html_text(
    maps: xr.Dataset,
    tokens: Sequence[str],
    *,
    sample: int = 0,
    title: str = "Where each token looks",
) -> str:
    """Make a web page of a text that shows where its tokens look; one string that loads nothing
    else.

    Point at a token, or tap it, to colour the tokens that it looks at, the strongest one in full
    colour. A click holds a token, and arrow keys move to the next. Layer and head can be
    chosen. Without scripts, the page still has the text, and a table of where each token looks
    most.

    Args:
        maps: From `attention.capture(..., queries="all", maps=True)`; with `keys="all"` if the
            model has tokens before the text, such as a class token.
        tokens: The text, one string for each token. Markup in it is shown as plain text.
        sample: Which sample.
        title: Above the text.

    Returns:
        The page: write it to a file with `Path.write_text(html, encoding="utf-8")`. Weights are
        rounded to at most 0.004, small ones to much less.

    Raises:
        ValueError: If there are no weights between all tokens, `tokens` has another length, or the
            page would be too large; then choose layers or heads, `maps.sel(layer=[...])`.

    Examples:
        >>> weight = np.full((1, 1, 1, 2, 2), 0.5)
        >>> maps = xr.Dataset({"weight": (("sample", "layer", "head", "query", "key"), weight)},
        ...                   coords={"layer": ["blocks.0"], "head": [0]})
        >>> html_text(maps, ["so", " be"])[:15]
        '<!doctype html>'
    """
    names = [str(token) for token in tokens]
    weights = _weights_of(maps, len(names), check_whole("sample", sample, at_least=0))
    n_layers, n_heads, n, _ = weights.shape

    # In the square root, so that small weights, of which there are most, keep their digits.
    is_known = np.isfinite(weights)
    steps = np.rint(np.sqrt(np.where(is_known, weights, 0).clip(0, 1)) * _STEPS)
    content = np.where(is_known, steps, 255).astype(np.uint8).tobytes()

    signs = [_show(token) for token in names]
    rows, first = _strongest(weights, signs)
    return render_page(
        _PAGE,
        title=title,
        layers=[str(name) for name in maps["layer"].values],
        heads=[str(name) for name in maps["head"].values],
        tokens=[
            {"shown": sign, "after": "\n" if "\n" in token else ""}
            for token, sign in zip(names, signs, strict=True)
        ],
        rows=rows,
        data={
            "shape": [n_layers, n_heads, n],
            "steps": _STEPS,
            "tokens": signs,
            "first": first,
            "weights": base64.b64encode(content).decode("ascii"),
        },
    )


def _weights_of(maps: xr.Dataset, n_tokens: int, sample: int) -> NDArray[np.float64]:
    """Give the weights `(layer, head, query, key)` of one sample, without the room after its end.

    Raises:
        ValueError: If there are none between so many tokens.
    """
    dims = ("layer", "head", "query", "key")
    axes = set(maps["weight"].dims) - {"sample"} if "weight" in maps else set()
    if axes != set(dims):
        raise ValueError(
            "`maps`: expected `weight` over layer, head, query and key, as from "
            f'capture(..., queries="all", maps=True), got {", ".join(map(str, axes)) or "none"}'
        )

    weight = maps["weight"]
    if "sample" in weight.dims:
        if sample >= weight.sizes["sample"]:
            raise ValueError(f"`sample`: expected at most {weight.sizes['sample'] - 1}")
        weight = weight.isel(sample=sample)
    values = weight.transpose(*dims).values

    # A shorter text than the longest of its batch has nothing after its end.
    n_queries, n_keys = values.shape[2:]
    fits = 0 < n_tokens <= min(n_queries, n_keys) and not (
        np.isfinite(values[:, :, n_tokens:]).any() or np.isfinite(values[..., n_tokens:]).any()
    )
    if not fits:
        hint = ""
        if "n_prefix" in maps and int(maps["n_prefix"].max()) and maps.attrs.get("keys") != "all":
            hint = '; capture with keys="all", so that tokens before the text count as well'
        raise ValueError(
            f"`tokens`: expected one string for each of {n_queries} queries and {n_keys} keys, got "
            f"{n_tokens}{hint}"
        )

    values = values[:, :, :n_tokens, :n_tokens]
    if values.size > _MOST_WEIGHTS:
        raise ValueError(
            f"`maps`: {values.size} weights are too many for a page, of at most {_MOST_WEIGHTS}; "
            "choose layers, maps.sel(layer=[...]), or heads"
        )
    return np.asarray(values, dtype=np.float64)


def _show(token: str) -> str:
    # What takes no room could not be pointed at.
    return token.translate(_SIGNS) or "\u2205"


def _strongest(
    weights: NDArray[np.float64], signs: Sequence[str]
) -> tuple[list[dict[str, str]], int]:
    """Say for each token where it looks most; and give the last token that looks anywhere."""
    is_known = np.isfinite(weights)
    counts = is_known.sum((0, 1))
    sums = np.where(is_known, weights, 0).sum((0, 1))
    means = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)

    rows = []
    first = 0
    for query, row in enumerate(means):
        keys = np.flatnonzero(np.isfinite(row))
        order = keys[np.argsort(-row[keys], kind="stable")][:_TOP]
        text = ", ".join(f"{signs[key]} ({key}) {row[key]:.3f}" for key in order)
        rows.append({"token": signs[query], "text": text or "nothing was recorded"})
        if keys.size:
            first = query
    return rows, first
