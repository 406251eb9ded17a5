"""Functional tests of a credit signal, block by block."""

from nudging._alignment import alignment
from nudging._auxiliary import auxiliary
from nudging._backprop import backprop
from nudging._correlation import correlation
from nudging._measure import measure
from nudging._nudge import nudge
from nudging._observe import observe
from nudging._random import random
from nudging._result import saved_credit
from nudging._state import State

__all__ = [
    "State",
    "alignment",
    "auxiliary",
    "backprop",
    "correlation",
    "measure",
    "nudge",
    "observe",
    "random",
    "saved_credit",
]
