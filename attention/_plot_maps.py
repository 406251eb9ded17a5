from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray


def plot_maps(
    maps: xr.Dataset,
    images: ArrayLike | None = None,
    *,
    sample: int = 0,
    axes: NDArray[Any] | None = None,
    **style: Any,
) -> NDArray[Any]:
    """Lay the attention of one sample over its image, one panel for each layer and row.

    Weights are averaged over heads, and share one colour scale.

    Args:
        maps: With `weight (..., sample, layer, key)`, from `attention.capture(..., maps=True)`
            with `queries` "cls" or "mean". Every further dimension but `head`, such as `step`,
            makes rows of panels.
        images: `(sample, channel, height, width)`, drawn below the attention and alone in a column
            of its own. Any range of values: each image is stretched to its full contrast.
        sample: Which one.
        axes: `(row, column)`: where to draw, one column for each layer, and with `images` one more.
        style: For `Axes.imshow` of the attention.

    Returns:
        The Axes, `(row, column)`.

    Raises:
        ValueError: If there is no `weight`, it has queries, a layer's keys form no image, `images`
            are none, or `axes` has another shape.
    """
    panels, grids = _panels(maps, sample)
    picture = None if images is None else _picture(_checked(images, sample))
    shape = (panels.sizes["row"], panels.sizes["layer"] + (picture is not None))
    if axes is None:
        import matplotlib.pyplot as plt  # here, so that computing needs no matplotlib

        size = (1.7 * shape[1] + 1.4, 1.7 * shape[0] + 0.5)
        _, axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="compressed")
    if axes.shape != shape:
        raise ValueError(f"`axes`: expected shape {shape}, got {axes.shape}")
    drawn = None
    settings = {
        "cmap": "inferno",
        "vmin": 0,
        "vmax": float(panels.max()),
        "alpha": 1.0 if picture is None else 0.65,
        "interpolation": "nearest",
    } | style
    for row, line in enumerate(axes):
        for ax, layer in zip(line[picture is not None :], range(len(grids)), strict=True):
            start, height, width = grids[layer]
            keys = panels.isel(row=row, layer=layer, key=slice(start, start + height * width))
            if picture is not None:
                height, width = picture.shape[:2]
                ax.imshow(picture, cmap="gray")
            # Drawn in the image's own coordinates, whatever the size of a patch.
            extent = (-0.5, width - 0.5, height - 0.5, -0.5)
            drawn = ax.imshow(keys.values.reshape(grids[layer][1:]), extent=extent, **settings)
            if row == 0:
                ax.set_title(str(panels["layer"].values[layer]), fontsize="small")
        if picture is not None:
            line[0].imshow(picture, cmap="gray")
        for ax in line:
            ax.set(xticks=[], yticks=[])
        line[0].set_ylabel(str(panels["row"].values[row]), fontsize="small")
    if drawn is not None:
        label = str(maps["weight"].attrs.get("long_name", "attention weight"))
        axes[0, 0].figure.colorbar(drawn, ax=axes, label=label, shrink=min(1.0, 2 / shape[0]))
    return axes


def _panels(maps: xr.Dataset, sample: int) -> tuple[xr.DataArray, list[tuple[int, int, int]]]:
    """Weights `(row, layer, key)`, and for each layer where its grid starts, and its size."""
    if "weight" not in maps or "query" in maps["weight"].dims:
        raise ValueError(
            '`maps`: expected `weight` without `query`, as from capture(..., queries="cls", '
            "maps=True); pick one query with .isel(query=...)"
        )
    grids = []
    for name in map(str, maps["layer"].values):
        layer = maps.sel(layer=name)
        if int(layer["n_windows"]) > 1 or bool(layer["grid_height"].isnull()):
            raise ValueError(f"`maps`: expected keys that form an image, but not in layer {name!r}")
        start = int(layer["n_prefix"]) if maps.attrs.get("keys") == "all" else 0
        grids.append((start, int(layer["grid_height"]), int(layer["grid_width"])))
    weight = maps["weight"].isel(sample=sample)
    weight = weight.mean("head") if "head" in weight.dims else weight
    others = [dim for dim in weight.dims if dim not in ("layer", "key")]
    names = [
        ", ".join(_caption(weight, dim, i) for dim, i in zip(others, index, strict=True))
        for index in np.ndindex(*(weight.sizes[dim] for dim in others))
    ]
    stacked = weight.transpose(*others, "layer", "key").values
    flat = stacked.reshape(-1, *stacked.shape[len(others) :])
    coords = {"row": names, "layer": weight["layer"].values}
    return xr.DataArray(flat, coords, ("row", "layer", "key")), grids


def _caption(weight: xr.DataArray, dim: Any, index: int) -> str:
    value = weight[dim].values[index]
    return str(value) if isinstance(value, str) else f"{dim} {value}"


def _checked(images: ArrayLike, sample: int) -> NDArray[Any]:
    pictures = np.asarray(images)
    fits = pictures.ndim == 4 and pictures.shape[1] in (1, 3) and sample < len(pictures)
    if not fits:
        raise ValueError(
            "`images`: expected (sample, channel, height, width) with 1 or 3 channels and at least "
            f"{sample + 1} samples, got shape {pictures.shape}; leave it out for other inputs"
        )
    return np.asarray(pictures[sample])


def _picture(image: NDArray[Any]) -> NDArray[Any]:
    low, high = image.min(), image.max()
    stretched = (image - low) / (high - low if high > low else 1)
    return np.asarray(stretched[0] if len(image) == 1 else stretched.transpose(1, 2, 0))
