"""Functional tests of a credit signal, block by block."""

from nudging._backprop import backprop
from nudging._credit_bridge import CreditBridge
from nudging._direct_feedback import direct_feedback
from nudging._equilibrium import EquilibriumPropagation
from nudging._feedback import feedback
from nudging._load_credit import load_credit
from nudging._observe import observe
from nudging._state import State
from nudging._state_bridge import StateBridge

__all__ = [
    "CreditBridge",
    "EquilibriumPropagation",
    "State",
    "StateBridge",
    "backprop",
    "direct_feedback",
    "feedback",
    "load_credit",
    "observe",
]
