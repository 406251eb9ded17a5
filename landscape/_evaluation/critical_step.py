"""Where a loss, followed along a direction, first rises above its value at the beginning.

With `e(t) = L(w + t u) - L(w)`, that is the root of `r(t) = e(t) / t`, which at 0 is the slope of
the loss along `u`. On a quadratic loss `r` is a straight line, so that a secant finds its root at
once; near a minimum of a network it is nearly one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

# By how much a step grows where the secant does not say, or says too much.
_LARGEST_GROWTH = 8.0

# By how much farther each step goes than the secant says, for every step that fell short before it.
_OVERSHOOT = 8.0

# Ratio of the ends of a bracket within which the secant between them is to be trusted.
_WIDE = 2.0


@dataclass
class Bracket:
    """Steps between which the loss comes back to its first value.

    Attributes:
        lower, upper: The largest step known to lower the loss, and the smallest above it known not
            to; 0 and infinity where there is none.
        lower_rate, upper_rate: `r` at both.
        outer, outer_rate: The end that was given up last, and `r` there; NaN where there is none.
        n_evaluations: Steps tried.
        largest_change: Of the loss, at any step tried.
    """

    lower: float = 0.0
    lower_rate: float = math.nan
    upper: float = math.inf
    upper_rate: float = math.nan
    outer: float = field(default=math.nan, repr=False)
    outer_rate: float = field(default=math.nan, repr=False)
    n_evaluations: int = 0
    largest_change: float = field(default=0.0, repr=False)

    @property
    def step(self) -> float:
        """The root between both ends of a parabola through `r` there and at `outer`.

        Opposite signs at the ends leave it one root between them. NaN if an end is missing.
        """
        if not self.upper or not math.isfinite(self.upper):
            return math.nan if self.upper else 0.0
        if self.upper_rate == self.lower_rate or not math.isfinite(self.upper_rate):
            return self.lower

        width = self.upper - self.lower
        secant = (self.upper_rate - self.lower_rate) / width

        bend = 0.0
        if math.isfinite(self.outer_rate):
            other_secant = (self.outer_rate - self.lower_rate) / (self.outer - self.lower)
            bend = (other_secant - secant) / (self.outer - self.upper)

        # lower_rate + slope s + bend s^2 = 0, in the form that loses no digits.
        slope = secant - bend * width
        root = math.sqrt(max(slope**2 - 4 * bend * self.lower_rate, 0.0))
        return self.lower - 2 * self.lower_rate / (slope + root)

    @property
    def is_slow(self) -> bool:
        """Whether the latest step has left more than half of the bracket before it."""
        width_before = abs(self.outer - (self.upper if self.outer < self.lower else self.lower))
        return self.upper - self.lower > width_before / 2

    def add(self, step: float, change: float) -> None:
        """Take in the change of the loss at a step."""
        self.n_evaluations += 1
        self.largest_change = max(self.largest_change, abs(change))

        # A loss that is not a number is no lower than before.
        if change < 0:
            self.outer = self.lower
            self.outer_rate = self.lower_rate
            self.lower = step
            self.lower_rate = change / step
        else:
            self.outer = self.upper
            self.outer_rate = self.upper_rate
            self.upper = step
            self.upper_rate = change / step


def find_critical_step(
    change_at: Callable[[float], float],
    *,
    slope: float,
    first_step: float,
    tolerance: float,
    max_evaluations: int,
) -> Bracket:
    """Bracket the smallest step at which a loss is no lower than before it.

    A step that is passed over by the first guess, between two at which the loss is lower, is not
    seen.

    Args:
        change_at: The change of the loss at a step.
        slope: Of the loss along the direction, at 0. If the loss does not fall there, no step is
            small enough, and the bracket ends at 0.
        first_step: The first guess.
        tolerance: Width of the bracket, relative to its lower end, at which the search stops.
        max_evaluations: Steps that may be tried.
    """
    bracket = Bracket(lower_rate=slope)
    if not slope < 0:
        return Bracket(upper=0.0, upper_rate=slope)

    step = first_step
    for _ in range(max_evaluations):
        bracket.add(step, change_at(step))
        if bracket.upper <= (1 + tolerance) * bracket.lower:
            break
        step = _next_step(bracket, slope, tolerance)
    return bracket


def _next_step(bracket: Bracket, slope: float, tolerance: float) -> float:
    """Choose the step to try next: near the root of the secant, on the side that is still open."""
    if not math.isfinite(bracket.upper):
        # The secant from 0, which knows the slope there.
        growth = slope / (slope - bracket.lower_rate) if bracket.lower_rate > slope else math.inf

        # Where the loss comes back ever more slowly, each secant ends short of the root.
        excess = (1 + tolerance / 2) * growth - 1
        excess *= _OVERSHOOT ** (bracket.n_evaluations - 1)
        return bracket.lower * min(1 + excess, _LARGEST_GROWTH)

    # A loss that overflows, or is no number, has no secant.
    if not math.isfinite(bracket.upper_rate):
        return _bisect(bracket)

    root = bracket.step

    # Beside a loss that cannot fall below 0 the root seems nearer than it is: halves are surer.
    if bracket.is_slow and bracket.upper > _WIDE * bracket.lower:
        return _bisect(bracket)

    # The root is well known once both of its neighbours have been tried.
    above = (1 + tolerance / 3) * root
    below = (1 - tolerance / 3) * root
    if below > bracket.lower and above >= bracket.upper:
        return below
    if above < bracket.upper and below <= bracket.lower:
        return above

    # Beyond the root, as seen from the nearer end: the farther one moves up to it.
    return above if root - bracket.lower < bracket.upper - root else below


def _bisect(bracket: Bracket) -> float:
    # The geometric mean: the first guess may be wrong by orders of magnitude.
    if bracket.lower > 0:
        return math.sqrt(bracket.lower * bracket.upper)
    return bracket.upper / _LARGEST_GROWTH
