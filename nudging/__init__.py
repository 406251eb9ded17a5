"""Functional tests of a credit signal, block by block.

A credit gives each block of a network a direction that is meant to point like the gradient of the
loss. Start with `nudge`: it moves the output of each block a little against a credit, such as
`backprop()`, and measures whether the loss falls. `measure` adds the angle with the gradient, and
the correlation of predicted and true changes. `audit` checks whether such numbers mean anything in
your network.
"""

from nudging._credits.auxiliary import auxiliary
from nudging._credits.backprop import backprop
from nudging._credits.credit_bridge import CreditBridge
from nudging._credits.direct_feedback import direct_feedback
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
from nudging._plots.audit import plot_audit
from nudging._plots.dissociation import plot_dissociation
from nudging._plots.nudge import plot_nudge
from nudging._replay.observe import observe
from nudging._replay.state import State

__all__ = [
    # Measures of a credit
    "nudge",
    "alignment",
    "correlation",
    "measure",
    # Measures of a network, and of its training
    "audit",
    "stability",
    "depth_utility",
    "drift",
    # Credits: each is made by a call
    "backprop",
    "random",
    "auxiliary",
    "direct_feedback",
    "feedback",
    "EquilibriumPropagation",
    "StateBridge",
    "CreditBridge",
    # Credits in files
    "saved_credit",
    "load_credit",
    # What a credit sees
    "observe",
    "State",
    # Plots
    "plot_nudge",
    "plot_alignment",
    "plot_dissociation",
    "plot_audit",
]
