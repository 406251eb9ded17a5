"""Loss surfaces around and between models, their roughness and curvature."""

from landscape._curvature.curvature import curvature
from landscape._curvature.eigenvectors import eigenvectors
from landscape._plots.contour import plot_contour
from landscape._plots.density import plot_density
from landscape._plots.line import plot_line
from landscape._plots.page import html_surface
from landscape._plots.surface import plot_surface
from landscape._plots.surfaces import plot_surfaces
from landscape._surfaces.bend import bend
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
    "bend",
    "curvature",
    "curvature_map",
    "curve",
    "dilution",
    "eigenvectors",
    "grid",
    "html_surface",
    "line",
    "plane",
    "plot_contour",
    "plot_density",
    "plot_line",
    "plot_surface",
    "plot_surfaces",
    "principal_directions",
    "smoothness",
    "trajectory",
]
