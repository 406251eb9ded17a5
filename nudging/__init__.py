"""Functional tests of a credit signal, block by block."""

from nudging._alignment import alignment
from nudging._audit import audit
from nudging._auxiliary import auxiliary
from nudging._backprop import backprop
from nudging._correlation import correlation
from nudging._credit_bridge import CreditBridge
from nudging._depth_utility import depth_utility
from nudging._direct_feedback import direct_feedback
from nudging._drift import drift
from nudging._equilibrium import EquilibriumPropagation
from nudging._feedback import feedback
from nudging._load_credit import load_credit
from nudging._measure import measure
from nudging._nudge import nudge
from nudging._observe import observe
from nudging._plot_alignment import plot_alignment
from nudging._plot_dissociation import plot_dissociation
from nudging._plot_nudge import plot_nudge
from nudging._random import random
from nudging._saved_credit import saved_credit
from nudging._stability import stability
from nudging._state import State
from nudging._state_bridge import StateBridge

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
