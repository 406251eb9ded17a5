"""Loss surfaces around and between models, their roughness and curvature."""

from landscape._bend import bend
from landscape._curvature import curvature
from landscape._curvature_map import curvature_map
from landscape._curve import curve
from landscape._dilution import dilution
from landscape._eigenvectors import eigenvectors
from landscape._grid import grid
from landscape._html_surface import html_surface
from landscape._line import line
from landscape._plane import plane
from landscape._plot_contour import plot_contour
from landscape._plot_density import plot_density
from landscape._plot_line import plot_line
from landscape._plot_surface import plot_surface
from landscape._plot_surfaces import plot_surfaces
from landscape._principal_directions import principal_directions
from landscape._smoothness import smoothness
from landscape._trajectory import trajectory

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
