from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from resonance_toolkit import Title, write_figure_title


def plot_maps(
    maps: xr.Dataset,
    images: ArrayLike | None = None,
    *,
    sample: int = 0,
    title: Title = False,
    axes: NDArray[Any] | None = None,
    **style: Any,
) -> NDArray[Any]:
    """Draw the attention of one sample over its image, one panel for each layer and row.

    Weights are averaged over heads, and share one colour scale.

    Args:
        maps: With `weight (..., sample, layer, key)`, from `attention.capture(..., maps=True)`
            with `queries` "cls" or "mean". Every further dimension but `head`, such as `step`,
            makes rows of panels.
        images: `(sample, channel, height, width)`, drawn below the attention and alone in a column
            of its own. Any range of values: each image is stretched to its full contrast.
        sample: Which one.
        title: Above the figure: a text, or True for what the attributes say.
        axes: `(row, column)`: where to draw, one column for each layer, and with `images` one more.
        style: For `Axes.imshow` of the attention.

    Returns:
        The Axes, `(row, column)`.

    Raises:
        ValueError: If there is no `weight`, it has queries, a layer's keys form no image, `images`
            are none, or `axes` has another shape.
    """
    panels, grids = _make_panels(maps, sample)
    image = None if images is None else _stretch_contrast(_pick_image(images, sample))
    n_images = 0 if image is None else 1
    shape = (panels.sizes["row"], panels.sizes["layer"] + n_images)
    if axes is None:
        import matplotlib.pyplot as plt

        size = (1.7 * shape[1] + 1.4, 1.7 * shape[0] + 0.5)
        _, axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="compressed")
    if axes.shape != shape:
        raise ValueError(f"`axes`: expected shape {shape}, got {axes.shape}")

    settings = {
        "cmap": "inferno",
        "vmin": 0,
        "vmax": float(panels.max()),
        "alpha": 1.0 if image is None else 0.65,
        "interpolation": "nearest",
    } | style
    picture = None
    for row, row_axes in enumerate(axes):
        for index, (ax, grid) in enumerate(zip(row_axes[n_images:], grids, strict=True)):
            weights = panels.isel(row=row, layer=index)
            picture = _draw_panel(ax, weights.values, grid, image, settings)
            if row == 0:
                ax.set_title(str(panels["layer"].values[index]), fontsize="small")

        if image is not None:
            row_axes[0].imshow(image, cmap="gray")
        for ax in row_axes:
            ax.set(xticks=[], yticks=[])
        row_axes[0].set_ylabel(str(panels["row"].values[row]), fontsize="small")

    if picture is not None:
        label = str(maps["weight"].attrs.get("long_name", "attention weight"))
        axes[0, 0].figure.colorbar(picture, ax=axes, label=label, shrink=min(1.0, 2 / shape[0]))
    write_figure_title(list(axes.flat), title, maps)
    return axes


class _Grid(NamedTuple):
    """The keys of a layer that form an image, and its size in patches."""

    first_key: int
    height: int
    width: int


def _draw_panel(
    ax: Any,
    weights: NDArray[Any],
    grid: _Grid,
    image: NDArray[Any] | None,
    settings: dict[str, Any],
) -> Any:
    """Draw the weights of one layer, over the image if there is one."""
    height = grid.height
    width = grid.width
    patches = weights[grid.first_key : grid.first_key + height * width].reshape(height, width)

    # Drawn in the image's own coordinates, whatever the size of a patch.
    if image is not None:
        height, width = image.shape[:2]
        ax.imshow(image, cmap="gray")
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    return ax.imshow(patches, extent=extent, **settings)


def _make_panels(maps: xr.Dataset, sample: int) -> tuple[xr.DataArray, list[_Grid]]:
    """Return weights `(row, layer, key)`, and the grid of each layer."""
    if "weight" not in maps or "query" in maps["weight"].dims:
        raise ValueError(
            '`maps`: expected `weight` without `query`, as from capture(..., queries="cls", '
            "maps=True); pick one query with .isel(query=...)"
        )
    grids = [_find_grid(maps, name) for name in map(str, maps["layer"].values)]

    weight = maps["weight"].isel(sample=sample)
    weight = weight.mean("head") if "head" in weight.dims else weight

    # Every further dimension makes rows of panels, which are named after its values.
    row_dims = [dim for dim in weight.dims if dim not in ("layer", "key")]
    names = [
        ", ".join(_caption(weight, dim, i) for dim, i in zip(row_dims, index, strict=True))
        for index in np.ndindex(*(weight.sizes[dim] for dim in row_dims))
    ]
    values = weight.transpose(*row_dims, "layer", "key").values
    rows = values.reshape(-1, *values.shape[len(row_dims) :])
    coords = {"row": names, "layer": weight["layer"].values}
    return xr.DataArray(rows, coords, ("row", "layer", "key")), grids


def _find_grid(maps: xr.Dataset, name: str) -> _Grid:
    layer = maps.sel(layer=name)
    if int(layer["n_windows"]) > 1 or bool(layer["grid_height"].isnull()):
        raise ValueError(f"`maps`: expected keys that form an image, but not in layer {name!r}")

    first_key = int(layer["n_prefix"]) if maps.attrs.get("keys") == "all" else 0
    return _Grid(first_key, int(layer["grid_height"]), int(layer["grid_width"]))


def _caption(weight: xr.DataArray, dim: Any, index: int) -> str:
    value = weight[dim].values[index]
    return str(value) if isinstance(value, str) else f"{dim} {value}"


def _pick_image(images: ArrayLike, sample: int) -> NDArray[Any]:
    pictures = np.asarray(images)
    fits = pictures.ndim == 4 and pictures.shape[1] in (1, 3) and sample < len(pictures)
    if not fits:
        raise ValueError(
            "`images`: expected (sample, channel, height, width) with 1 or 3 channels and at least "
            f"{sample + 1} samples, got shape {pictures.shape}; leave it out for other inputs"
        )
    return np.asarray(pictures[sample])


def _stretch_contrast(image: NDArray[Any]) -> NDArray[Any]:
    """Return an image `(channel, height, width)` from 0 to 1, as `imshow` has it."""
    low = image.min()
    high = image.max()
    stretched = (image - low) / (high - low if high > low else 1)
    return np.asarray(stretched[0] if len(image) == 1 else stretched.transpose(1, 2, 0))
