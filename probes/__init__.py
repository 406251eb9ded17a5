"""Auxiliary branches at named layers of any model, gone at inference."""

from probes import schedules
from probes._attach import attach
from probes._decodable import Decodable
from probes._generate import generate
from probes._probe import Probe

__all__ = ["Decodable", "Probe", "attach", "generate", "schedules"]
