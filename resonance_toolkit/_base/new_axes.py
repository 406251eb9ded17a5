from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
