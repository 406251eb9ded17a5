"""Entropy, Gini, peak and coverage of the attention of any transformer.

Start with `capture`, which runs a model once and measures all its layers. `capturing` is a context
manager that does the same for your own forward passes, also in training. `statistics` and `rollout`
compute more from the maps that these two return.
"""

from attention._capture import capture
from attention._capturing import capturing
from attention._plots.maps import plot_maps
from attention._plots.statistics import plot_statistics
from attention._plots.text_page import html_text
from attention._rollout import rollout
from attention._sinks import sinks
from attention._statistics import statistics

__all__ = [
    # Reading a model
    "capture",
    "capturing",
    "sinks",
    # From maps
    "rollout",
    "statistics",
    # Pictures
    "plot_maps",
    "plot_statistics",
    "html_text",
]
