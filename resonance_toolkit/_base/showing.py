"""What people see: warnings, tables in a terminal, figures, web pages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes


# Frames of these packages, and of `with` statements around them, are ours, not the user's.
_NOT_THE_USERS = frozenset(
    {
        "attention",
        "contextlib",
        "gradients",
        "landscape",
        "nudging",
        "probes",
        "resonance",
        "resonance_toolkit",
    }
)

# What pages of several packages include; it is shipped beside the code.
_TEMPLATES = Path(__file__).parent / "templates"


def is_ours(module_globals: dict[str, object]) -> bool:
    """Tell whether a module is the toolkit's (or runs its `with` statements), by its globals."""
    package = str(module_globals.get("__name__", "")).partition(".")[0]
    return package in _NOT_THE_USERS


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called the toolkit, however deep we are.

    Examples:
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_user("all used")
        >>> str(caught[0].message)
        'all used'
    """
    # 1 would be this function; by frame, since hops differ from verb to verb.
    depth = 1
    frame = sys._getframe()
    while frame.f_back is not None and is_ours(frame.f_globals):
        frame = frame.f_back
        depth += 1
    warnings.warn(message, stacklevel=depth)


def text_table(rows: Sequence[Sequence[str]], *, separator: str = "  ") -> str:
    """Align the columns of a table, for a `repr` or a terminal.

    Examples:
        >>> print(text_table([("layer", "width"), ("blocks.0", "64")]))
        layer     width
        blocks.0  64
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = (
        separator.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def new_axes(**figure_settings: Any) -> Axes:
    """Make a figure with one Axes, for a plot that was given none.

    Args:
        **figure_settings: For `plt.subplots`, such as `figsize`; the layout is constrained.

    Examples:
        >>> import matplotlib
        >>> matplotlib.use("agg")
        >>> new_axes(figsize=(4, 3)).figure.get_size_inches().tolist()
        [4.0, 3.0]
    """
    # Here, so that computing does not wait for matplotlib to load.
    import matplotlib.pyplot as plt

    figure_settings.setdefault("layout", "constrained")
    ax: Axes
    _, ax = plt.subplots(**figure_settings)
    return ax


def render_page(template: str | Path, **values: Any) -> str:
    """Fill in a web page; a value is text in it, whatever it holds, and never markup.

    Args:
        template: Of Jinja2, or a file that holds one and may include its neighbours.
            `{{ name }}` is escaped, in the text and between the quotes of an attribute;
            `{{ name | tojson }}` is safe inside of a script. Every template may include
            `surface.js`, which draws a surface to be turned by hand.
        **values: By the names that the template has.

    Raises:
        jinja2.UndefinedError: If the template has another name.
        ValueError: If JSON is asked for of a number that is not finite.

    Examples:
        >>> render_page('<p title="{{ layer }}">{{ layer }}', layer='"<b>')
        '<p title="&#34;&lt;b&gt;">&#34;&lt;b&gt;'
        >>> print(render_page("<script>data = {{ data | tojson }}", data="</script>"))
        <script>data = "\\u003c/script\\u003e"
    """
    if isinstance(template, Path):
        return _environment(template.parent).get_template(template.name).render(values)
    return _environment(_TEMPLATES).from_string(template).render(values)


# Made at the first page: most programs write none.
@cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return environment
