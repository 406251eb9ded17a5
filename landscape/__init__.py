"""Loss surfaces around and between models, their roughness and curvature."""

from landscape._bend import bend
from landscape._curvature import curvature
from landscape._curvature_map import curvature_map
from landscape._curve import curve
from landscape._dilution import dilution
from landscape._eigenvectors import eigenvectors
from landscape._grid import grid
from landscape._line import line
from landscape._plane import plane
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
    "line",
    "plane",
    "principal_directions",
    "smoothness",
    "trajectory",
]
