"""Functional tests of a credit signal, block by block."""

from nudging._alignment import alignment
from nudging._audit import audit
from nudging._auxiliary import auxiliary
from nudging._backprop import backprop
from nudging._correlation import correlation
from nudging._depth_utility import depth_utility
from nudging._drift import drift
from nudging._measure import measure
from nudging._nudge import nudge
from nudging._observe import observe
from nudging._random import random
from nudging._result import saved_credit
from nudging._stability import stability
from nudging._state import State

__all__ = [
    "State",
    "alignment",
    "audit",
    "auxiliary",
    "backprop",
    "correlation",
    "depth_utility",
    "drift",
    "measure",
    "nudge",
    "observe",
    "random",
    "saved_credit",
    "stability",
]
