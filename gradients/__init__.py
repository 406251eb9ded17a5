"""Cosines, norms and inner products of several losses' gradients while training."""

from gradients._compare import compare
from gradients._initial_norm import initial_norm
from gradients._noise import noise
from gradients._plots.dynamics import plot_dynamics
from gradients._plots.layers import plot_layers
from gradients._plots.trace import plot_trace
from gradients._regroup import regroup
from gradients._summarise import summarise
from gradients._trace import Trace

__all__ = [
    "Trace",
    "compare",
    "initial_norm",
    "noise",
    "plot_dynamics",
    "plot_layers",
    "plot_trace",
    "regroup",
    "summarise",
]
