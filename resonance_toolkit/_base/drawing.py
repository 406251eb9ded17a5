"""What the plots of all instruments share: colours in order, legends beside, titles, thin labels.

A plot may stand in a figure of the user's, with or without a layout engine. A legend beside axes is
seen by a layout engine; without one, the axes give it some of their own room, as they do for a
colour bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.legend import Legend

Title: TypeAlias = bool | str

# Inches for a slanted name and for one in a column, and letters that an inch has room for.
_NAME_WIDTH = 0.17
_NAME_HEIGHT = 0.14
_LETTERS_PER_INCH = 9

_MOST_ENTRIES = 12  # of a legend: more would be higher than the axes
_MOST_SHARE = 0.6  # of the axes that a legend may take
_WIDEST = 0.85  # of the axes: a legend below them
_GAP = 8.0  # points between axes, their labels and a legend

# Where axes were before they first gave room: a second curve in them must not take more.
_places_before: WeakKeyDictionary[Axes, Any] = WeakKeyDictionary()


def colors_by_order(n: int) -> list[str]:
    """Give `n` colours from pale green to dark blue, for layers from the first to the last.

    A cycle of ten colours would name the eleventh layer like the first.

    Examples:
        >>> colors_by_order(2)
        ['#bddf26', '#482475']
        >>> len(set(colors_by_order(48)))
        48
    """
    import matplotlib as mpl
    from matplotlib.colors import to_hex

    places = [0.1 + 0.8 * i / (n - 1) for i in range(n)] if n > 1 else [0.7]
    return [to_hex(mpl.colormaps["viridis_r"](place)) for place in places]


def thin_out(n: int, most: int = _MOST_ENTRIES) -> list[int]:
    """Give no more than `most` indices out of `n`, at even distances, the first and last included.

    Examples:
        >>> thin_out(3), thin_out(48, 4)
        ([0, 1, 2], [0, 16, 31, 47])
    """
    if n <= most:
        return list(range(n))
    if most == 1:
        return [0]
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]


def label_places(ax: Axes, names: Sequence[str]) -> None:
    """Write names of layers at 0, 1, ... of the x axis: slanted if long, not all if many.

    Call it after the legend, whose room is then known.
    """
    figure: Any = ax.figure.figure
    width = (ax.bbox.width - _width_of_legend(ax)) / figure.dpi
    most = max(2, int(width / _NAME_WIDTH))
    places = list(range(0, len(names), -(-len(names) // most)))  # at even distances
    is_slanted = sum(len(names[place]) for place in places) > _LETTERS_PER_INCH * width
    style: dict[str, Any] = {}
    if is_slanted:
        style = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    if is_slanted and len(places) > 8:
        style["fontsize"] = "small"

    ax.set_xticks(places, [names[place] for place in places], **style)
    ax.set_xlim(-0.6, len(names) - 0.4)


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Write names of layers at 0, 1, ... of the y axis, the first on top; not all if many."""
    figure: Any = ax.figure.figure
    most = max(2, int(ax.bbox.height / figure.dpi / _NAME_HEIGHT))
    places = list(range(0, len(names), -(-len(names) // most)))  # at even distances

    ax.set_yticks(places, [names[place] for place in places], fontsize="small")
    ax.set_ylim(len(names) - 0.5, -0.5)


def legend_outside(
    ax: Axes, *, side: Literal["right", "bottom"] = "right", **settings: Any
) -> Legend | None:
    """Put a legend beside axes, or below them, where it covers no data.

    Args:
        ax: Whose artists with a label have an entry; without any there is no legend.
        side: Where.
        settings: For `Axes.legend`.
    """
    from matplotlib.transforms import ScaledTranslation

    if "handles" not in settings and not ax.get_legend_handles_labels()[0]:
        return None

    figure: Any = ax.figure.figure
    defaults: dict[str, Any] = {"frameon": False, "fontsize": "small", "borderaxespad": 0.0}
    shift = (_GAP / 72, 0.0)
    anchor = (1.0, 1.0)
    corner = "upper left"
    depth = 0.0
    if side == "bottom":
        # Below what stands below the axes: labels of ticks, and the axis's own.
        labels = ax.xaxis.get_tightbbox()
        depth = 0.0 if labels is None else max(ax.bbox.y0 - labels.y0, 0.0)
        shift = (0.0, -depth / figure.dpi - _GAP / 72)
        anchor = (0.5, 0.0)
        corner = "upper center"

    defaults |= {"loc": corner, "bbox_to_anchor": anchor}
    defaults["bbox_transform"] = ax.transAxes + ScaledTranslation(*shift, figure.dpi_scale_trans)
    legend = ax.legend(**(defaults | settings))

    # Below, entries stand beside one another only as far as the axes are wide.
    n_columns = int(settings.get("ncols", 1))
    while side == "bottom" and n_columns > 1 and _is_too_wide(legend, ax):
        n_columns -= 1
        legend = ax.legend(**(defaults | settings | {"ncols": n_columns}))

    if figure.get_layout_engine() is None:
        size = legend.get_window_extent()
        room = size.width if side == "right" else size.height + depth
        _give_room(ax, room + 2 * _GAP * figure.dpi / 72, side)
    return legend


def write_title(ax: Axes, title: Title, result: xr.Dataset) -> None:
    """Write a title above axes: a text, or with True what the result's attributes say.

    Examples:
        >>> import matplotlib
        >>> import xarray as xr
        >>> from matplotlib import pyplot as plt
        >>> matplotlib.use("agg")
        >>> _, ax = plt.subplots()
        >>> attributes = {"made_by": "landscape.grid", "model": "ViT", "n_samples": 500}
        >>> write_title(ax, True, xr.Dataset(attrs=attributes))
        >>> ax.get_title()
        'landscape.grid of ViT, 500 samples'
    """
    if text := title_text(title, result):
        ax.set_title(text, fontsize="medium", wrap=True)


def write_figure_title(axes: Sequence[Axes], title: Title, result: xr.Dataset) -> None:
    """Write a title, as `write_title`, above a figure whose axes have titles of their own."""
    if text := title_text(title, result):
        figure: Any = axes[0].figure
        figure.suptitle(text, fontsize="medium")


def title_text(title: Title, result: xr.Dataset) -> str:
    """Give the text of a title: what was given, or what made the result, of what; else nothing."""
    if isinstance(title, str):
        return title
    if not title:
        return ""

    attributes = result.attrs
    text = str(attributes.get("made_by", ""))
    if model := attributes.get("model"):
        text = f"{text} of {model}" if text else str(model)

    details = [text] if text else []
    n_samples = attributes.get("n_samples")
    if n_samples is not None and str(n_samples) != "none":
        details.append(f"{n_samples} sample{'s' if str(n_samples) != '1' else ''}")
    if "seed" in attributes and "seed" not in result.dims:
        details.append(f"seed {attributes['seed']}")
    return ", ".join(details)


def _is_too_wide(legend: Legend, ax: Axes) -> bool:
    return bool(legend.get_window_extent().width > _WIDEST * ax.bbox.width)


def _width_of_legend(ax: Axes) -> float:
    """Give the pixels that a layout engine will take from axes for the legend beside them."""
    figure: Any = ax.figure.figure
    legend = ax.get_legend()
    if legend is None or figure.get_layout_engine() is None:
        return 0.0

    place = legend.get_window_extent()
    is_beside = place.x0 >= ax.bbox.x1
    return min(float(place.width), _MOST_SHARE * float(ax.bbox.width)) if is_beside else 0.0


def _give_room(ax: Axes, pixels: float, side: str) -> None:
    """Make axes smaller by so much at one side, counted from where they stood at first."""
    from matplotlib.transforms import Bbox

    spec = ax.get_subplotspec()
    original_place = _places_before.setdefault(ax, spec if spec is not None else ax.get_position())

    figure: Any = ax.figure.figure
    is_box = isinstance(original_place, Bbox)
    place = original_place if is_box else original_place.get_position(figure)
    full = (place.width if side == "right" else place.height) * (
        figure.bbox.width if side == "right" else figure.bbox.height
    )
    share = min(pixels / full, _MOST_SHARE)

    if is_box:
        width = place.width * (1 - share if side == "right" else 1)
        height = place.height * (1 - share if side == "bottom" else 1)
        ax.set_position(Bbox.from_bounds(place.x0, place.y1 - height, width, height))
    elif side == "right":
        columns = original_place.subgridspec(1, 2, wspace=0, width_ratios=[1 - share, share])
        ax.set_subplotspec(columns[0])
    else:
        rows = original_place.subgridspec(2, 1, hspace=0, height_ratios=[1 - share, share])
        ax.set_subplotspec(rows[0])
