"""Figures as markup inside a page: of known elements alone, in the reader's colours.

Matplotlib's file is parsed, and what is on the lists below is written again. Whatever a name may
have smuggled in is text by then, or gone; so are matplotlib's metadata and its links.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from resonance_toolkit._front.page.figure_style import INK, MUTED, PAPER, RULE, SERIES, page_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a picture needs of the many elements and attributes that a file of this kind may hold.
_ELEMENTS = frozenset(
    {"svg", "g", "path", "defs", "clipPath", "use", "rect", "circle", "image", "text", "tspan"}
)
_ATTRIBUTES = frozenset(
    {
        "d",
        "style",
        "transform",
        "id",
        "clip-path",
        "x",
        "y",
        "width",
        "height",
        "viewBox",
        "r",
        "cx",
        "cy",
        "preserveAspectRatio",
    }
)

# Dots for each inch of what is drawn as an image: maps, surfaces.
_DPI = 150

# Pixels of the page for each point of a figure: its letters are as large as the captions.
_SCALE = 1.1 * 4 / 3

# Colours of the figures, and black and white of the instruments' plots, by the names that the
# page's style sheet gives them for light and for dark.
_COLOURS = {
    INK: "ink",
    MUTED: "muted",
    RULE: "rule",
    PAPER: "paper",
    "#000000": "ink",
    "#d9d9d9": "faint",
    "#e5e5e5": "faint",
    **{colour: f"series-{index}" for index, colour in enumerate(SERIES)},
}
_NAMESPACE = re.compile(r"^\{[^}]*\}")


def to_svg(figure: Figure, *, name: str, label: str) -> Markup:
    """Write a figure as an element of a page.

    Args:
        figure: Drawn with the page's colours.
        name: Begins all ids, which must be unique in a page.
        label: What those hear who do not see.
    """
    _rasterise_maps(figure)
    file = io.BytesIO()

    with page_style():
        import matplotlib as mpl

        # Letters stay letters, in the page's font; ids are the same at every call.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            figure.savefig(file, format="svg", dpi=_DPI, metadata={"Date": None})

    root = ElementTree.fromstring(file.getvalue())
    width = _read_points(root.get("width", "0"))
    parts: list[str] = []
    _write_element(root, parts, name)
    body = "".join(parts).removeprefix("<svg")
    label = escape(label)
    opening = f'<svg role="img" aria-label="{label}" style="width:{width * _SCALE:.0f}px"'
    return Markup(opening + body)


def _rasterise_maps(figure: Figure) -> None:
    from matplotlib.collections import QuadMesh
    from matplotlib.contour import ContourSet

    # Matplotlib 3.9 and 3.10 draw contours as lines, and warn that they do.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Rasterization of .* will be ignored")
        for artist in figure.findobj(lambda artist: isinstance(artist, ContourSet | QuadMesh)):
            artist.set_rasterized(True)


def _write_element(element: ElementTree.Element, parts: list[str], name: str) -> None:
    tag = _NAMESPACE.sub("", element.tag) if isinstance(element.tag, str) else ""
    if tag not in _ELEMENTS:
        return

    parts.append(f"<{tag}")
    for key, value in element.attrib.items():
        local_key = _NAMESPACE.sub("", key)
        if local_key == "href":
            _write_link(value, parts, name)
        elif local_key in _ATTRIBUTES and not (tag == "svg" and local_key in {"width", "height"}):
            parts.append(f' {local_key}="{escape(_rename_value(local_key, value, name))}"')

    parts.append(">")

    if tag in {"text", "tspan"}:
        parts.append(escape(element.text or ""))

    for child in element:
        _write_element(child, parts, name)
        if tag in {"text", "tspan"}:
            parts.append(escape(child.tail or ""))

    parts.append(f"</{tag}>")


def _write_link(value: str, parts: list[str], name: str) -> None:
    if value.startswith("#"):
        parts.append(f' href="#{escape(name)}-{escape(value[1:])}"')
    elif value.startswith("data:image/png;base64,"):
        parts.append(f' href="{escape("".join(value.split()))}"')


def _rename_value(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "clip-path":
        return value.replace("url(#", f"url(#{name}-")

    if key == "style":
        # The page's font; and its colours, with matplotlib's own for whoever knows no variables.
        value = re.sub(
            r"'[^']*'(, *'[^']*')*, *(sans-serif|serif|monospace)|'[^']*'", "inherit", value
        )
        return re.sub(r"#[0-9a-f]{6}", lambda match: _as_variable(match.group()), value)

    return value


def _as_variable(colour: str) -> str:
    return f"var(--{_COLOURS[colour]})" if colour in _COLOURS else colour


def _read_points(length: str) -> float:
    return float(length.removesuffix("pt"))
