from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from resonance_toolkit import Title, new_axes, write_title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

# By verdict; the shape of the mark tells the same to readers who do not see the colours.
_LOOKS = {"passed": ("C0", "o"), "fired": ("#c00000", "X"), "not measured": ("0.5", "")}
_NEEDED = ("value", "threshold", "verdict", "reason")
_LETTERS_PER_INCH = 10
_ROOM_FOR_ALL = 4.5  # inches of an axis for a tick at each decade
_FARTHEST = 3.0  # decades; what is farther is drawn there, with an arrow


def plot_audit(
    audit: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw the four checks of an audit: how far each value is from where its check fires.

    The distance is a factor, on a logarithmic scale. For every check, it fires on the shaded side
    at the right. A triangle marks a value that is farther away than a factor of 1000, or of the
    other sign. Value and threshold are written below each name. For a check that was not measured,
    and so has not passed, the reason is given.

    Args:
        audit: Of `nudging.audit`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: For the marks, as `Axes.scatter` takes it.

    Returns:
        The Axes.

    Raises:
        ValueError: If `audit` is something else.
    """
    names = [name for name in _NEEDED if name not in audit or audit[name].dims != ("check",)]
    if names:
        raise ValueError(
            f"`audit`: expected a result of nudging.audit, got none with {', '.join(names)}"
        )

    checks = [str(name) for name in audit["check"].values]
    if ax is None:
        ax = new_axes(figsize=(6.8, 1.2 + 0.62 * len(checks)))

    figure: Any = ax.figure.figure
    inches = ax.bbox.width / figure.dpi

    ax.axvspan(0, 2 * _FARTHEST, color="#c00000", alpha=0.07, linewidth=0)
    ax.axvline(0, color="black", linewidth=1)
    labels = []
    for row, name in enumerate(checks):
        check = audit.sel(check=name)
        value = float(check["value"])
        threshold = float(check["threshold"])
        verdict = str(check["verdict"].values)
        side = _fires_above(value, threshold, verdict)

        if side is None:
            labels.append(f"{name}\n{verdict}")
            reason = textwrap.shorten(str(check["reason"].values), 110)
            text = textwrap.fill(reason, max(20, min(52, int(_LETTERS_PER_INCH * inches))))
            ax.text(-0.95 * _FARTHEST, row, text, va="center", color="0.35", fontsize="small")
            continue
        labels.append(f"{name}: {verdict}\n{value:.3g}, {side} {threshold:.3g}")
        _draw_check(ax, row, _decades_past(value, threshold, side), verdict, style)

    ax.set_yticks(range(len(checks)), labels, fontsize="small")
    ax.set_ylim(len(checks) - 0.5, -0.5)
    ax.set_xlim(-_FARTHEST - 0.2, _FARTHEST + 0.2)
    ticks = [-3, -2, -1, 0, 1, 2, 3] if inches > _ROOM_FOR_ALL else [-3, 0, 3]
    ax.set_xticks(ticks, [_factor(tick) for tick in ticks])
    ax.set_xlabel("distance from the threshold\n(shaded: the check fires)")
    write_title(ax, title, audit)
    return ax


def _fires_above(value: float, threshold: float, verdict: str) -> str | None:
    """Say at which side of its threshold a check fires, which the verdict tells."""
    if verdict not in ("fired", "passed") or math.isnan(value):
        return None
    is_above = value > threshold
    return "fires above" if is_above == (verdict == "fired") else "fires below"


def _decades_past(value: float, threshold: float, side: str) -> float:
    """The logarithm of value over threshold, positive where the check fires."""
    sign = 1.0 if side == "fires above" else -1.0
    if value <= 0 or threshold <= 0:
        # No factor leads from one sign to the other.
        return sign * math.copysign(math.inf, value - threshold) if value != threshold else 0.0
    if math.isinf(value):
        return sign * math.inf
    return sign * math.log10(value / threshold)


def _draw_check(ax: Axes, row: int, distance: float, verdict: str, style: dict[str, Any]) -> None:
    color, marker = _LOOKS[verdict]
    place = max(-_FARTHEST, min(_FARTHEST, distance))
    if place != distance:
        marker = ">" if distance > 0 else "<"
    ax.hlines(row, 0, place, color=color, linewidth=2, alpha=0.6)
    look: dict[str, Any] = {"s": 70, "color": color, "marker": marker, "zorder": 3}
    ax.scatter([place], [row], **(look | style))


def _factor(decades: int) -> str:
    return "threshold" if decades == 0 else f"{'x' if decades > 0 else '1/'}{10 ** abs(decades)}"
