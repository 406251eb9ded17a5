"""Functional tests of a credit signal, block by block."""

from nudging._credits.auxiliary import auxiliary
from nudging._credits.backprop import backprop
from nudging._credits.credit_bridge import CreditBridge
from nudging._credits.feedback_matrices import direct_feedback
from nudging._credits.equilibrium import EquilibriumPropagation
from nudging._credits.feedback import feedback
from nudging._credits.load_credit import load_credit
from nudging._credits.random import random
from nudging._credits.saved_credit import saved_credit
from nudging._credits.state_bridge import StateBridge
from nudging._measures.alignment import alignment
from nudging._measures.audit import audit
from nudging._measures.correlation import correlation
from nudging._measures.depth_utility import depth_utility
from nudging._measures.drift import drift
from nudging._measures.measure import measure
from nudging._measures.nudge import nudge
from nudging._measures.stability import stability
from nudging._plots.alignment import plot_alignment
from nudging._plots.dissociation import plot_dissociation
from nudging._plots.nudge import plot_nudge
from nudging._replay.observe import observe
from nudging._replay.state import State

__all__ = [
    "CreditBridge",
    "EquilibriumPropagation",
    "State",
    "StateBridge",
    "alignment",
    "audit",
    "auxiliary",
    "backprop",
    "correlation",
    "depth_utility",
    "direct_feedback",
    "drift",
    "feedback",
    "load_credit",
    "measure",
    "nudge",
    "observe",
    "plot_alignment",
    "plot_dissociation",
    "plot_nudge",
    "random",
    "saved_credit",
    "stability",
]
