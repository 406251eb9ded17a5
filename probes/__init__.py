"""Auxiliary branches at named layers of any model, active in training only; early exits.

Start with `attach`, which adds branches to named layers and returns a `Probe`. Train on the main
loss plus `probe.loss(y)`. To look at every branch, call `probe.measure(y)` for the latest batch or
`probe.evaluate(data)` for a whole dataset. Targets may belong to samples, tokens or pixels.

For early exits, start with `attach_exits`, which trains layers through the model's own head, or
with `exits`, which measures what leaving at each layer would save and cost. `generate` decodes text
with early exits. The `plot_*` functions draw the results. The modules `probes.accelerate`,
`probes.lightning` and `probes.transformers` connect a probe to these frameworks.
"""

from probes import schedules, weightings
from probes._branches.attach import attach
from probes._branches.probe import Probe
from probes._decoding.decodable import Decodable
from probes._decoding.generate import generate
from probes._exit_analysis.analyse import exits
from probes._exit_analysis.calibrate import calibrate_exits
from probes._exit_analysis.record import record_exits
from probes._exit_analysis.reliability import exit_reliability
from probes._exit_analysis.route import route_exits
from probes._exit_analysis.token_map import exit_map
from probes._exit_training.attach import attach_exits
from probes._exit_training.losses import Exits
from probes._features.similarity import similarity
from probes._plots.arms import plot_arms
from probes._plots.branches import plot_branches
from probes._plots.exit_text import plot_exit_text
from probes._plots.exit_text_page import html_exit_text
from probes._plots.reliability import plot_reliability
from probes._plots.similarity import plot_similarity
from probes._plots.tradeoff import plot_tradeoff

__all__ = [
    # Branches
    "attach",
    "Probe",
    "schedules",
    # Features of layers
    "similarity",
    # Early exits: train, record, analyse
    "attach_exits",
    "Exits",
    "weightings",
    "exits",
    "record_exits",
    "route_exits",
    "exit_reliability",
    "calibrate_exits",
    "exit_map",
    # Decoding with early exits
    "generate",
    "Decodable",
    # Plots
    "plot_branches",
    "plot_arms",
    "plot_tradeoff",
    "plot_reliability",
    "plot_similarity",
    "plot_exit_text",
    "html_exit_text",
]
