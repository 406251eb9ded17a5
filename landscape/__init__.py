"""Loss surfaces around and between models, their roughness and curvature."""

from landscape._grid import grid

__all__ = ["grid"]
