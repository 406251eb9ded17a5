from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from resonance_toolkit import Title, check_choice, legend_outside, new_axes, write_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ArmVariable = Literal["accuracy", "loss", "train_loss"]

_DIMS = {"arm", "seed", "step"}


def plot_arms(
    response: xr.Dataset,
    *,
    variable: ArmVariable = "accuracy",
    title: Title = False,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """Draw training with branches beside plain training: means over seeds, and every seed.

    A thick line is the mean over the seeds, thin ones are the seeds, and the band reaches from the
    lowest seed to the highest. The first arm is grey, others have a colour and dashes.

    Args:
        response: With `variable (arm, step)`, and `seed` if there are several, such as the part
            `/response` of `resonance.examine`.
        variable: `"accuracy"` or `"loss"` on held-out samples, or `"train_loss"`.
        title: A text, or True for one made from the attributes.
        ax: Where to draw; a new figure by default.
        style: For the means, as `Axes.plot` takes it.

    Returns:
        The Axes.

    Raises:
        ValueError: If `response` has no such variable over these dimensions.
    """
    check_choice("variable", variable, ("accuracy", "loss", "train_loss"))
    dims = set(response[variable].dims) if variable in response else set()
    if not {"arm", "step"} <= dims <= _DIMS:
        raise ValueError(
            f"`response`: expected `{variable}` over arm, step and seed, got "
            f"{', '.join(map(str, dims)) or 'none'}"
        )
    if ax is None:
        ax = new_axes(figsize=(6.4, 3.8))

    curves = response[variable]
    if "seed" not in dims:
        curves = curves.expand_dims("seed")
    for index, arm in enumerate(curves["arm"].values):
        color = "0.35" if index == 0 else f"C{index - 1}"
        dashes = ("-", "--", "-.", ":")[index % 4]
        curves_of_arm = curves.isel(arm=index).transpose("seed", "step")
        look = {"color": color, "linestyle": dashes, "label": str(arm)} | style
        _draw_arm(ax, curves_of_arm, look)

    ax.set_xlabel(str(curves["step"].attrs.get("long_name", "optimizer updates")))
    ax.set_ylabel(str(response[variable].attrs.get("long_name", variable)))
    ax.grid(alpha=0.3)
    write_title(ax, title, response)

    n_seeds = curves.sizes["seed"]
    note = f"mean and range of {n_seeds} seeds" if n_seeds > 1 else None
    legend_outside(ax, side="bottom", title=note, title_fontsize="small", ncols=4)
    return ax


def _draw_arm(ax: Axes, curves: xr.DataArray, look: dict[str, Any]) -> None:
    # Steps without a value in any seed, such as the training loss before the first update.
    curves = curves.isel(step=np.flatnonzero(np.isfinite(curves.values).any(0)))
    steps = curves["step"].values
    values = curves.values

    (line,) = ax.plot(steps, np.nanmean(values, axis=0), **({"linewidth": 2} | look))
    if len(values) > 1 and len(steps):
        color = line.get_color()
        for of_seed in values:
            ax.plot(steps, of_seed, color=color, alpha=0.4, linewidth=0.7)
        low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
        ax.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
