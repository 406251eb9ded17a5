"""Auxiliary branches at named layers of any model, gone at inference; losses for early exits."""

from probes import schedules, weightings
from probes._attach import attach
from probes._attach_exits import attach_exits
from probes._calibrate_exits import calibrate_exits
from probes._decodable import Decodable
from probes._exit_losses import Exits
from probes._exit_map import exit_map
from probes._exit_reliability import exit_reliability
from probes._exits import exits
from probes._generate import generate
from probes._html_exit_text import html_exit_text
from probes._plot_exit_text import plot_exit_text
from probes._plot_reliability import plot_reliability
from probes._plot_tradeoff import plot_tradeoff
from probes._probe import Probe
from probes._record_exits import record_exits
from probes._route_exits import route_exits

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
