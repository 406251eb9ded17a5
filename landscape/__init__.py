"""Loss surfaces around and between models, their roughness and curvature."""

__all__: list[str] = []
