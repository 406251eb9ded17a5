from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resonance_toolkit import Title, new_axes, write_title

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes

# Names of more layers than these would lie on one another: every second, third, ... is written.
_MOST_NAMES = 16


def plot_similarity(
    similarity: xr.Dataset, *, title: Title = False, ax: Axes | None = None, **style: Any
) -> Axes:
    """Draw which layers of two models are alike, as a matrix.

    The first layers are at the lower left. If corresponding layers of both models have the same
    features, the diagonal is bright. Colours run from 0 to 1, so that figures can be compared.

    Args:
        similarity: Made by `similarity`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw.
        style: For `Axes.pcolormesh`.

    Returns:
        The Axes.

    Raises:
        ValueError: If `similarity` is something else.
    """
    if "cka" not in similarity or set(similarity["cka"].dims) != {"layer", "other_layer"}:
        raise ValueError(
            "`similarity`: expected a Dataset made by probes.similarity, got one with "
            f"{', '.join(map(str, similarity.data_vars)) or 'nothing'}"
        )

    if ax is None:
        ax = new_axes(figsize=(5.0, 4.2))

    matrix = similarity["cka"].transpose("layer", "other_layer")
    mesh = ax.pcolormesh(matrix.values, **{"vmin": 0, "vmax": 1, "cmap": "viridis", **style})
    ax.figure.colorbar(mesh, ax=ax, label="debiased linear CKA")

    for axis, names in (
        (ax.yaxis, matrix["layer"].values),
        (ax.xaxis, matrix["other_layer"].values),
    ):
        step = -(-len(names) // _MOST_NAMES)
        axis.set_ticks([i + 0.5 for i in range(0, len(names), step)], labels=list(names[::step]))
    ax.tick_params(axis="x", rotation=90)

    ax.set(ylabel=str(similarity.attrs.get("model", "model")))
    ax.set(xlabel=f"other: {similarity.attrs.get('other', 'model')}")
    write_title(ax, title, similarity)
    return ax
