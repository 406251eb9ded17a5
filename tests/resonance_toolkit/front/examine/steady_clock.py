"""For tests here, and for the processes that they start."""

import itertools
from collections.abc import Callable


def make_steady_clock() -> Callable[[], float]:
    """Each look finds the clock 1/128 s later: differences are exact, whenever it was started."""
    ticks = itertools.count()
    return lambda: next(ticks) / 128
