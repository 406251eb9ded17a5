"""Entropy, Gini, peak and coverage of the attention of any transformer."""

from attention._capture import capture
from attention._capturing import capturing

__all__ = ["capture", "capturing"]
