"""Loss surfaces around and between models, their roughness and curvature."""

from landscape._dilution import dilution
from landscape._grid import grid
from landscape._smoothness import smoothness

__all__ = ["dilution", "grid", "smoothness"]
