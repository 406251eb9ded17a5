"""Loss surfaces around and between models, their roughness and curvature.

Start with `grid(model, data)`, which evaluates the loss on a plane through the weights, and draw
the result with `plot_contour`. `line` and `plane` connect several models, `trajectory` shows a
training run, and `curvature` measures the eigenvalues of the Hessian, which no plane shows.
"""

from landscape._curvature.curvature import curvature
from landscape._curvature.eigenvectors import eigenvectors
from landscape._plots.contour import plot_contour
from landscape._plots.density import plot_density
from landscape._plots.dilution import plot_dilution
from landscape._plots.line import plot_line
from landscape._plots.page import html_surface
from landscape._plots.surface import plot_surface
from landscape._plots.surfaces import plot_surfaces
from landscape._surfaces.bend import bend
from landscape._surfaces.critical_sharpness import critical_sharpness
from landscape._surfaces.curvature_map import curvature_map
from landscape._surfaces.curve import curve
from landscape._surfaces.dilution import dilution
from landscape._surfaces.grid import grid
from landscape._surfaces.line import line
from landscape._surfaces.plane import plane
from landscape._surfaces.principal_directions import principal_directions
from landscape._surfaces.smoothness import smoothness
from landscape._surfaces.trajectory import trajectory

__all__ = [
    # Around a model
    "grid",
    "line",
    "curvature_map",
    # Between models, and along training
    "plane",
    "bend",
    "curve",
    "trajectory",
    "principal_directions",
    # What a surface is like
    "smoothness",
    "dilution",
    # Curvature at the weights
    "curvature",
    "eigenvectors",
    "critical_sharpness",
    # Plots
    "plot_contour",
    "plot_surface",
    "plot_surfaces",
    "plot_line",
    "plot_density",
    "plot_dilution",
    "html_surface",
]
