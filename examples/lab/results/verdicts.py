"""Published numbers beside ours, with a verdict where there can be one.

A number agrees if three things hold: the data are the paper's data set, the budget is the paper's
(`lab.studies.conditions` says what stands in the way of either), and the interval of our mean over
seeds meets the published mean with its deviation. If only the last fails, it disagrees. In all
other cases it is "not comparable", with the reason. That both have the same sign decides nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args

from lab.results.statistics import mean_interval

Verdict = Literal["agrees", "disagrees", "not comparable"]
Value = float | str | None

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it.

    Attributes:
        mean: The number.
        deviation: What stands behind its "+-", over the paper's seeds; None if nothing does.
        p: The paper's own p value, as it is printed.
        rounding: Half a unit of its last printed digit: 0.00005 for 0.0032.
        printed: Its digits, where they tell more than the number: 0.0000.
    """

    mean: float
    deviation: float | None = None
    p: str = ""
    rounding: float = 0.0
    printed: str = ""


@dataclass(frozen=True)
class Row:
    """One published quantity beside ours; None where there is nothing to put.

    Attributes:
        quantity: What was measured.
        published, here: The paper's number or words, and ours (a mean over seeds). So they are
            called in every printed table and in the kept files.
        verdict, note: The verdict, with the reason for it and further words.
        deviation, p, printed: As in `Published`.
        low, high: The ends of our 95 % interval.
    """

    quantity: str
    published: Value
    here: Value
    verdict: Verdict = "not comparable"
    note: str = ""
    deviation: float | None = None
    p: str = ""
    low: float | None = None
    high: float | None = None
    printed: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"`verdict`: expected one of {VERDICTS}, got {self.verdict!r}")


def compare(
    quantity: str,
    published: Published | float,
    values: Sequence[float],
    *,
    obstacles: Sequence[str] = (),
    note: str = "",
) -> Row:
    """Make a row with its verdict, by the rule at the top of this file.

    Args:
        quantity: What was measured.
        published: The paper's number. Without a deviation our interval must contain it, or a
            number that is rounded to it.
        values: Ours, one for each seed; those of diverged runs are NaN and left out.
        obstacles: Why there can be no verdict, as `lab.studies.conditions.obstacles` says.
        note: Further words.

    Examples:
        >>> gain = Published(9.2, deviation=1.6)
        >>> compare("gain", gain, [8.0, 8.4, 8.2]).verdict
        'agrees'
        >>> compare("gain", gain, [3.0, 3.4, 3.2]).verdict  # of the same sign
        'disagrees'
        >>> compare("gain", gain, [8.0, 8.4, 8.2], obstacles=["2 epochs, not 200"]).verdict
        'not comparable'
        >>> compare("slope", printed_as("0.0000"), [2e-5, 3e-5]).verdict
        'agrees'
    """
    if not isinstance(published, Published):
        published = Published(published)

    finite_values = [float(value) for value in values if math.isfinite(value)]
    n_lost = len(values) - len(finite_values)
    loss_note = f"{n_lost} of {len(values)} seeds undefined" if n_lost else ""
    mean, low, high = mean_interval(finite_values)
    paper = {"deviation": published.deviation, "p": published.p, "printed": published.printed}

    if not finite_values:
        words = join_notes("undefined here", *obstacles, note)
        return Row(quantity, published.mean, float("nan"), note=words, **paper)

    if len(finite_values) < 2:
        words = join_notes("a single seed has no interval", *obstacles, loss_note, note)
        return Row(quantity, published.mean, mean, note=words, **paper)

    # 0.0000 stands for everything below 0.00005.
    spread = published.rounding if published.deviation is None else published.deviation
    meets = low <= published.mean + spread and high >= published.mean - spread
    verdict = judge(meets, comparable=not obstacles)

    # Without a verdict, the note still says how the two lie to each other.
    remark = ""
    if obstacles:
        remark = "intervals meet" if meets else "intervals do not meet"
    words = join_notes(*obstacles, remark, loss_note, note)
    return Row(quantity, published.mean, mean, verdict, words, low=low, high=high, **paper)


def printed_as(text: str) -> Published:
    """Read a number that is printed without a deviation, and how far it is rounded.

    Examples:
        >>> printed_as("0.0032")
        Published(mean=0.0032, deviation=None, p='', rounding=5e-05, printed='0.0032')
        >>> printed_as("1.3e4").rounding
        500.0
    """
    exponent = Decimal(text).as_tuple().exponent
    assert isinstance(exponent, int)  # neither NaN nor infinity
    rounding = float(Decimal(5).scaleb(exponent - 1))
    return Published(float(text), rounding=rounding, printed=text)


def compare_with_range(
    quantity: str,
    published: str,
    values: Sequence[float],
    bounds: tuple[float, float],
    *,
    obstacles: Sequence[str] = (),
    note: str = "",
) -> Row:
    """Compare ours with a published word, read as a range.

    It agrees if our whole interval lies within the range, disagrees if all of it lies outside, and
    is otherwise undecided.

    Args:
        quantity, values, obstacles, note: As for `compare`.
        published: The paper's word.
        bounds: What we take it to mean: between these two.

    Examples:
        >>> compare_with_range("norm", "reduced", [0.4, 0.5, 0.6], (0.0, 1.0)).verdict
        'agrees'
        >>> compare_with_range("norm", "reduced", [0.5, 1.6], (0.0, 1.0)).note
        'undecided: the interval has an end of the range in it'
    """
    row = compare(quantity, float("nan"), values, obstacles=obstacles, note=note)
    if row.low is None or row.high is None:
        return Row(quantity, published, row.here, note=row.note)

    is_within = bounds[0] <= row.low and row.high <= bounds[1]
    is_outside = row.high < bounds[0] or row.low > bounds[1]
    undecided = "" if is_within or is_outside else "the interval has an end of the range in it"
    words = join_notes(*obstacles, f"undecided: {undecided}" if undecided else "", note)
    verdict = judge(is_within, comparable=not obstacles and not undecided)
    return Row(quantity, published, row.here, verdict, words, low=row.low, high=row.high)


def judge(agrees: bool, *, comparable: bool = True) -> Verdict:
    """Put into words whether a result agrees, if it can be compared at all."""
    if not comparable:
        return "not comparable"
    return "agrees" if agrees else "disagrees"


def join_notes(*notes: str) -> str:
    """Join notes by semicolons, empty ones left out.

    Examples:
        >>> join_notes("intervals meet", "", "one seed")
        'intervals meet; one seed'
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


def format_published(row: Row) -> str:
    """Write the paper's number with its deviation and its p value, where it has them.

    Examples:
        >>> format_published(Row("gain", 9.2, 8.0, deviation=1.6, p="< 0.001"))
        '9.2 +- 1.6 (p < 0.001)'
    """
    text = row.printed or format_value(row.published)
    if row.deviation is not None:
        text += f" +- {row.deviation:g}"
    if row.p:
        text += f" (p {row.p})" if row.p.startswith("<") else f" (p = {row.p})"
    return text


def format_here(row: Row) -> str:
    """Write our number with its interval, where it has one.

    Examples:
        >>> format_here(Row("gain", 9.2, 8.2, low=7.7, high=8.7))
        '8.2 [7.7, 8.7]'
    """
    text = format_value(row.here)
    if row.low is not None and row.high is not None:
        text += f" [{format_value(row.low)}, {format_value(row.high)}]"
    return text
