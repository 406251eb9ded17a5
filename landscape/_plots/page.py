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
"use strict";
const data = {{ data | tojson }};
const canvas = document.getElementById("view"), draw = canvas.getContext("2d");
const n = data.a.length, m = data.b.length, flat = data.z.flat().filter(v => v !== null);
const low = Math.min(...flat), high = Math.max(...flat), span = high - low || 1;
const stops = [[68,1,84],[59,82,139],[33,145,140],[94,201,98],[253,231,37]];
const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
const digits = Math.min(15, Math.max(4, Math.ceil(Math.log10(size / span)) + 3));
const tell = v => v.toPrecision(digits);
let turn = -0.7, tilt = 0.9, zoom = 1;
function colour(t) {
  const s = Math.min(3.999, Math.max(0, t * 4)), i = Math.floor(s), f = s - i;
  const part = k => Math.round(stops[i][k] + f * (stops[i+1][k] - stops[i][k]));
  return "rgb(" + [0, 1, 2].map(part) + ")";
}
function project(x, y, z) {
  const c = Math.cos(turn), s = Math.sin(turn), u = c * x - s * y, v = s * x + c * y;
  const e = Math.cos(tilt), f = Math.sin(tilt);
  const k = 0.3 * zoom * Math.min(canvas.width, canvas.height * 1.2);
  return [canvas.width / 2 + k * u, canvas.height / 2 - k * (z * f + v * e), v * f - z * e];
}
const unit = (i, size) => 2 * i / (size - 1) - 1, height = z => (z - low) / span - 0.5;
function paint() {
  canvas.width = canvas.clientWidth * devicePixelRatio;
  canvas.height = canvas.clientHeight * devicePixelRatio;
  draw.strokeStyle = "#222";
  const edge = (p, q) => { draw.beginPath(); draw.moveTo(...project(...p).slice(0, 2));
                           draw.lineTo(...project(...q).slice(0, 2)); draw.stroke(); };
  edge([-1, -1, -.5], [1, -1, -.5]);
  edge([1, -1, -.5], [1, 1, -.5]);
  edge([-1, -1, -.5], [-1, -1, .5]);
  const cells = [];
  for (let i = 0; i + 1 < n; i++) for (let j = 0; j + 1 < m; j++) {
    const corners = [[i,j],[i+1,j],[i+1,j+1],[i,j+1]];
    const z = corners.map(([p, q]) => data.z[p][q]);
    if (z.includes(null)) continue;
    const points = corners.map(([p, q], k) => project(unit(p, n), unit(q, m), height(z[k])));
    const depth = points.reduce((total, p) => total + p[2], 0);
    cells.push([depth, points, z.reduce((x, y) => x + y) / 4]);
  }
  cells.sort((p, q) => q[0] - p[0]);
  for (const [, points, z] of cells) {
    draw.fillStyle = draw.strokeStyle = colour((z - low) / span);
    draw.beginPath();
    points.forEach((p, k) => k ? draw.lineTo(p[0], p[1]) : draw.moveTo(p[0], p[1]));
    draw.closePath(); draw.fill(); draw.stroke();
  }
  draw.fillStyle = "#222";
  draw.font = 13 * devicePixelRatio + "px system-ui, sans-serif";
  const label = (text, x, y, z) => {
    const p = project(x, y, z), last = canvas.width - draw.measureText(text).width;
    draw.fillText(text, Math.max(0, Math.min(p[0], last)), p[1]);
  };
  label("alpha " + data.a[0].toPrecision(3), -1, -1.12, -.5);
  label(data.a[n-1].toPrecision(3), 1, -1.12, -.5);
  label("beta " + data.b[m-1].toPrecision(3), 1.06, 1, -.5);
  label(data.name + " " + tell(high), -1, -1, .56);
  label(tell(low), -1.02, -1, -.42);
}
let held = null;
canvas.onpointerdown = e => {
  held = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId);
};
canvas.onpointerup = () => { held = null; };
canvas.onpointermove = e => {
  if (!held) return;
  turn += (e.clientX - held[0]) / 150;
  tilt = Math.min(1.57, Math.max(0.05, tilt - (e.clientY - held[1]) / 200));
  held = [e.clientX, e.clientY]; paint();
};
canvas.onwheel = e => { e.preventDefault(); zoom *= Math.exp(-e.deltaY / 800); paint(); };
window.onresize = paint;
const known = flat.length, missing = n * m - known;
document.getElementById("at").textContent =
  n + " x " + m + " points, " + tell(low) + " to " + tell(high) +
  (missing ? ", " + missing + " not finite" : "");
paint();
</script></html>
"""


def html_surface(surface: xr.Dataset, *, variable: str = "loss", title: str | None = None) -> str:
    """A web page with the surface to turn by hand, in one string that loads nothing else.

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
