"""Cosines, norms and inner products of several losses' gradients while training.

Start with `Trace`: call its `backward(main, auxiliary)` instead of `(main + auxiliary).backward()`,
and pass the result of its `to_dataset()` to `summarise` and `plot_trace`. `compare` measures once,
for one batch. The modules `gradients.accelerate`, `gradients.lightning` and
`gradients.transformers` connect a trace to these frameworks.
"""

from gradients._compare import compare
from gradients._initial_norm import initial_norm
from gradients._noise import noise
from gradients._noise_scale import noise_scale
from gradients._plots.dynamics import plot_dynamics
from gradients._plots.layers import plot_layers
from gradients._plots.noise import plot_noise
from gradients._plots.objectives import plot_objectives
from gradients._plots.trace import plot_trace
from gradients._read_trace import read_trace
from gradients._recorders.unreadable import UnreadableUpdateError
from gradients._regroup import regroup
from gradients._reweight import reweight
from gradients._summarise import summarise
from gradients._trace import Trace

summarize = summarise  # the American spelling works as well

__all__ = [
    # While training
    "Trace",
    "UnreadableUpdateError",
    # Once
    "compare",
    "initial_norm",
    "noise",
    # What was recorded
    "noise_scale",
    "read_trace",
    "regroup",
    "reweight",
    "summarise",
    "summarize",
    # Pictures
    "plot_dynamics",
    "plot_layers",
    "plot_noise",
    "plot_objectives",
    "plot_trace",
]
