"""Entropy, Gini, peak and coverage of the attention of any transformer."""

from attention._capture import capture
from attention._capturing import capturing
from attention._plot_maps import plot_maps
from attention._plot_statistics import plot_statistics
from attention._rollout import rollout
from attention._statistics import statistics

__all__ = ["capture", "capturing", "plot_maps", "plot_statistics", "rollout", "statistics"]
