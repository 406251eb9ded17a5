"""What a budget means in seconds, and the clock that is watched."""

import math
import time
from collections.abc import Callable
from numbers import Real
from typing import Literal, TypeAlias

Budget: TypeAlias = Literal["seconds", "minutes", "hour"] | float

# "minutes" is the time for which one waits in front of a screen.
SECONDS_BY_WORD = {"seconds": 30.0, "minutes": 180.0, "hour": 3600.0}

# What the whole may take in relation to the budget.
SLACK = 2.0


def seconds_of(budget: Budget) -> float:
    """Return a budget in seconds.

    Raises:
        ValueError: If it is neither a word that is known nor a positive number.

    Examples:
        >>> seconds_of("minutes"), seconds_of(5)
        (180.0, 5.0)
    """
    if isinstance(budget, str) and budget in SECONDS_BY_WORD:
        return SECONDS_BY_WORD[budget]

    if isinstance(budget, Real) and not isinstance(budget, bool):
        seconds = float(budget)
        if math.isfinite(seconds) and seconds > 0:
            return seconds

    words = ", ".join(repr(word) for word in SECONDS_BY_WORD)
    raise ValueError(f"`budget`: expected {words} or a number of seconds, got {budget!r}")


def read_clock() -> float:
    """Return seconds of a clock that only runs forward."""
    return time.perf_counter()


class Clock:
    """Measures what was spent of a budget.

    Args:
        budget_seconds: What there is.
    """

    def __init__(self, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds
        self._start = read_clock()

    def add(self, seconds: float) -> None:
        """Count what an earlier run, which this one continues, has spent."""
        self._start -= seconds

    @property
    def spent(self) -> float:
        """Seconds since the beginning, those of an earlier run included."""
        return read_clock() - self._start

    @property
    def seconds_left(self) -> float:
        """Seconds until twice the budget is spent."""
        return SLACK * self.budget_seconds - self.spent

    def has_room_for(self, seconds: float) -> bool:
        """Tell whether so much more stays within twice the budget."""
        return seconds <= self.seconds_left


def seconds_for(work: Callable[[], object]) -> float:
    """Do a piece of work, and return how long it took."""
    start = read_clock()
    work()
    return read_clock() - start
