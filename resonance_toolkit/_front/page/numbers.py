"""Numbers as the page writes them, each with what it means and its value in full behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import xarray as xr

_SUPERSCRIPTS = str.maketrans(
    "-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
)
_MINUS = "\u2212"


@dataclass(frozen=True)
class Number:
    """One row of a table of numbers.

    Args:
        name: What it is.
        value: NaN where it is not defined.
        reference: What to hold it against: its range, what chance or a uniform rule would give.
        low: Lower end of its interval, if it has one.
        high: Upper end.
        units: After the value.
    """

    name: str
    value: float
    reference: str = ""
    low: float = math.nan
    high: float = math.nan
    units: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def write_number(value: float, *, signed: bool = False) -> str:
    """Write a number for readers: three digits, a real minus, powers of ten as such.

    Examples:
        >>> write_number(202186), write_number(0.123456), write_number(-2.5)
        ('202,186', '0.123', '\u22122.5')
        >>> write_number(1.5e-7), write_number(float("nan")), write_number(0.5, signed=True)
        ('1.5 \xd7 10\u207b\u2077', 'not defined', '+0.5')
    """
    if math.isnan(value):
        return "not defined"
    if math.isinf(value):
        return "infinite" if value > 0 else f"{_MINUS}infinite"

    sign = _MINUS if value < 0 else "+" if signed and value > 0 else ""
    size = abs(value)
    if size == 0:
        return "0"
    if size == int(size) and size < 1e12:
        return f"{sign}{int(size):,}"

    if size >= 1e6 or size < 1e-3:
        digits, _, exponent = f"{size:.2e}".partition("e")
        digits = digits.rstrip("0").rstrip(".")
        return f"{sign}{digits} \u00d7 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"

    if size >= 999.5:
        return f"{sign}{size:,.0f}"

    return f"{sign}{size:.3g}"


def write_seconds(value: float) -> str:
    """Write a duration.

    Examples:
        >>> write_seconds(0.034), write_seconds(12.34), write_seconds(312.0), write_seconds(180.0)
        ('34 ms', '12.3 s', '5 min 12 s', '3 min')
    """
    if math.isnan(value):
        return ""
    if value < 0.0995:
        return f"{value * 1000:.0f} ms"
    if value < 99.95:
        return f"{value:.3g} s"

    minutes, seconds = divmod(round(value), 60)
    return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"


def as_number(value: object) -> float:
    """Return an attribute as a number; NaN if it is none. Read from a file, it is one of numpy's.

    Examples:
        >>> as_number(np.int64(3)), as_number("three"), as_number(None)
        (3.0, nan, nan)
    """
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def value_of(result: xr.Dataset, name: str, reduce: str = "mean") -> float:
    """Return one number of a result: a scalar, or the mean (`min`, `max`) of all that is defined.

    NaN where there is none.
    """
    if name not in result:
        return math.nan

    values: Any = np.asarray(result[name].values)
    if values.dtype.kind not in "fiub":
        return math.nan

    values = values[np.isfinite(values)].astype(float)
    return float(getattr(np, reduce)(values)) if values.size else math.nan
