import numpy as np
import xarray as xr

from landscape._plots.values import check_plane
from resonance_toolkit import render_page

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
  body { margin: 0; font: 14px/1.6 system-ui, sans-serif; color: #222; background: #fff }
  body { display: flex; flex-direction: column; height: 100vh; height: 100dvh }
  canvas { display: block; width: 100%; flex: 1; min-height: 0; cursor: grab; touch-action: none }
  p { margin: .4em 1em; overflow-wrap: anywhere }
</style>
<p><b>{{ title }}</b> &nbsp; drag to turn, wheel to zoom &nbsp; <span id="at"></span></p>
<canvas id="view"></canvas>
<script>
{% include "surface.js" %}
const data = {{ data | tojson }};
showSurface(document.getElementById("view"), data);
document.getElementById("at").textContent = describeSurface(data).text;
</script></html>
"""


def html_surface(surface: xr.Dataset, *, variable: str = "loss", title: str | None = None) -> str:
    """Make a web page with a surface that can be rotated; one string that loads nothing else.

    Args:
        surface: A result of `grid`, `plane`, `trajectory` or `curvature_map`.
        variable: What to draw; points without a finite value are holes.
        title: Text above it; the name of the model by default.

    Returns:
        The page: write it to a file with `Path.write_text`.

    Raises:
        ValueError: If `surface` has no such variable over `alpha` and `beta`.

    Examples:
        >>> flat = xr.Dataset({"loss": (("alpha", "beta"), np.zeros((2, 2)))},
        ...                   coords={"alpha": [0.0, 1.0], "beta": [0.0, 1.0]})
        >>> html_surface(flat)[:15]
        '<!doctype html>'
    """
    values = check_plane(surface, variable)
    name = values.attrs.get("long_name", variable)
    heading = title if title is not None else str(surface.attrs.get("model", name))

    # JSON knows neither NaN nor inf: holes are null.
    rows = [[z if np.isfinite(z) else None for z in row] for row in values.values.tolist()]
    data = {
        "a": values["alpha"].values.tolist(),
        "b": values["beta"].values.tolist(),
        "z": rows,
        "name": str(name),
    }

    return render_page(_PAGE, title=heading, data=data)
