"""Auxiliary branches at named layers of any model, gone at inference; losses for early exits."""

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
from probes._plots.exit_text import plot_exit_text
from probes._plots.exit_text_page import html_exit_text
from probes._plots.reliability import plot_reliability
from probes._plots.tradeoff import plot_tradeoff

__all__ = [
    "Decodable",
    "Exits",
    "Probe",
    "attach",
    "attach_exits",
    "calibrate_exits",
    "exit_map",
    "exit_reliability",
    "exits",
    "generate",
    "html_exit_text",
    "plot_exit_text",
    "plot_reliability",
    "plot_tradeoff",
    "record_exits",
    "route_exits",
    "schedules",
    "weightings",
]
