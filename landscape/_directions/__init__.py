"""Directions in the space of parameters: which tensors move, and how far."""
