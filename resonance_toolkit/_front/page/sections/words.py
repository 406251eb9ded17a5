"""Sentences about numbers that several parts have."""

from __future__ import annotations

import math
from collections.abc import Iterable

from resonance_toolkit._front.page.numbers import Number, write_number

# Below it, in absolute value, two gradients are called unrelated; `gradients.summarise` has the
# same margin.
MARGIN = 0.05


def keep_defined(numbers: Iterable[Number]) -> list[Number]:
    """Leave out what could not be measured."""
    return [number for number in numbers if not math.isnan(number.value)]


def write_interval(low: float, high: float, *, signed: bool = False) -> str:
    """Write both ends of an interval.

    Examples:
        >>> write_interval(-1, 2.5)
        'from \u22121 to 2.5'
    """
    return f"from {write_number(low, signed=signed)} to {write_number(high, signed=signed)}"


def describe_cosine(cosine: float) -> str:
    """Say what a cosine of two gradients means.

    Examples:
        >>> describe_cosine(0.4), describe_cosine(-0.01)
        ('they pull the same way', 'they are nearly at right angles')
    """
    if cosine > MARGIN:
        return "they pull the same way"
    if cosine < -MARGIN:
        return "they pull against each other"
    return "they are nearly at right angles"


def count(number: float, singular: str, plural: str = "") -> str:
    """Write how many there are of something.

    Examples:
        >>> count(1, "seed"), count(5, "seed")
        ('1 seed', '5 seeds')
    """
    word = singular if number == 1 else plural or f"{singular}s"
    return f"{write_number(number)} {word}"


def join_sentences(*sentences: str) -> str:
    """Put sentences one after another, without those that are empty."""
    return " ".join(sentence for sentence in sentences if sentence)
