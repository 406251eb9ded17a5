"""Functional tests of a credit signal, block by block."""

from nudging._backprop import backprop
from nudging._observe import observe
from nudging._state import State

__all__ = ["State", "backprop", "observe"]
