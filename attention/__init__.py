"""Entropy, Gini, peak and coverage of the attention of any transformer."""

__all__: list[str] = []
