"""Cosines, norms and inner products of several losses' gradients while training."""

__all__: list[str] = []
