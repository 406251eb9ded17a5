"""Published numbers beside ours, with a verdict where the budget allows one.

That is at `--scale paper`, or for quantities that no training budget changes (parameter counts,
dilution factors). There a row agrees if the measured value is within the tolerance that its note
states or, where it states none, has the published sign. Everything else is "not comparable", with a
note whether the sign is the same.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["agrees", "disagrees", "not comparable"]
Value = float | str | None

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Row:
    """One published quantity beside ours; None where there is nothing to put."""

    quantity: str
    published: Value
    here: Value
    verdict: Verdict = "not comparable"
    note: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"`verdict`: expected one of {VERDICTS}, got {self.verdict!r}")


@dataclass(frozen=True)
class Criterion:
    """What decides whether a measured number agrees with the published one.

    Attributes:
        tolerance: Largest difference that agrees; None compares signs.
        origin: Where the tolerance comes from, in words.
        budget_free: Whether no training budget changes the quantity.
        signed: Whether the sign means anything; if not, a tolerance is needed for a verdict.
    """

    tolerance: float | None = None
    origin: str = ""
    budget_free: bool = False
    signed: bool = True


SAME_SIGN = Criterion()


def compare(
    quantity: str,
    published: float,
    here: float,
    *,
    scale: str,
    criterion: Criterion = SAME_SIGN,
    note: str = "",
) -> Row:
    """Make a row with its verdict, by the rule at the top of this file.

    Args:
        quantity: What was measured.
        published: The paper's number.
        here: Ours; NaN (a diverged run, say) is never comparable.
        scale: One of `lab.results.options.SCALES`.
        criterion: What agreement means; by default, the same sign.
        note: Further words.

    Examples:
        >>> compare("gain", 9.2, 3.0, scale="paper").verdict
        'agrees'
        >>> compare("gain", 9.2, -3.0, scale="smoke").note
        'other sign'
        >>> close = Criterion(tolerance=0.5, origin="as published")
        >>> compare("gain", 9.2, 8.9, scale="paper", criterion=close).note
        'tolerance +- 0.5, as published'
    """
    # A zero has no sign, and agrees with a zero alone.
    has_same_sign = published * here > 0 or published == here
    can_decide = criterion.signed or criterion.tolerance is not None
    budget_suffices = scale == "paper" or criterion.budget_free

    # Without a verdict, the sign is all that can be said.
    if not (can_decide and budget_suffices and math.isfinite(here)):
        remark = ""
        if not math.isfinite(here):
            remark = "undefined here"
        elif criterion.signed and here:
            remark = "same sign" if has_same_sign else "other sign"
        return Row(quantity, published, here, note=join_notes(remark, note))

    if criterion.tolerance is None:
        agrees = has_same_sign
        bound = ""
    else:
        agrees = abs(published - here) <= criterion.tolerance
        bound = f"tolerance +- {criterion.tolerance:g}"
        bound += f", {criterion.origin}" if criterion.origin else ""

    return Row(quantity, published, here, judge(agrees), join_notes(bound, note))


def judge(agrees: bool, *, comparable: bool = True) -> Verdict:
    """Put into words whether a result agrees, if it can be compared at all."""
    if not comparable:
        return "not comparable"
    return "agrees" if agrees else "disagrees"


def join_notes(*notes: str) -> str:
    """Join notes by semicolons, empty ones left out.

    Examples:
        >>> join_notes("same sign", "", "one seed")
        'same sign; one seed'
    """
    return "; ".join(note for note in notes if note)


def format_value(value: Value) -> str:
    """Write a value as the tables have it.

    Examples:
        >>> format_value(None), format_value(9.21234), format_value(-0.0)
        ('-', '9.212', '0')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, str):
        return value
    return f"{value + 0.0:.4g}"  # adding zero takes the minus from -0.0
