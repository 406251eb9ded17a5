"""Checks of what a user passes: each names the argument, what was expected, and what came.

They return the value in its plain Python form, so that a numpy integer or float that passes a door
is an ordinary number behind it. A bool is never a number: `n=True` is a slip, not a one.
"""

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from torch import nn


def check_whole(argument: str, value: Any, *, at_least: int | None = 1) -> int:
    """Return a whole number, of Python's kind or numpy's, as an `int`.

    Args:
        argument: The name of the user's argument, for the error.
        value: The value that the user passed.
        at_least: The smallest number allowed; None allows any.

    Raises:
        ValueError: If it is not a whole number, or is too small.

    Examples:
        >>> check_whole("samples", 5)
        5
        >>> check_whole("seed", -1, at_least=0)
        Traceback (most recent call last):
        ValueError: `seed`: expected a whole number of at least 0, got -1
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)

    if not is_whole or (at_least is not None and value < at_least):
        bound = "" if at_least is None else f" of at least {at_least}"
        raise ValueError(f"`{argument}`: expected a whole number{bound}, got {value!r}")
    return int(value)


def check_positive(argument: str, value: Any) -> float:
    """Return a finite number above zero as a `float`.

    Raises:
        ValueError: If it is not such a number.

    Examples:
        >>> check_positive("eta", 1)
        1.0
        >>> check_positive("eta", float("nan"))
        Traceback (most recent call last):
        ValueError: `eta`: expected a positive, finite number, got nan
    """
    if not _is_finite_number(value) or value <= 0:
        raise ValueError(f"`{argument}`: expected a positive, finite number, got {value!r}")
    return float(value)


def check_not_negative(argument: str, value: Any) -> float:
    """Return a finite number of at least zero as a `float`.

    Raises:
        ValueError: If it is not such a number.

    Examples:
        >>> check_not_negative("alpha", 0)
        0.0
    """
    if not _is_finite_number(value) or value < 0:
        raise ValueError(f"`{argument}`: expected a finite number of at least 0, got {value!r}")
    return float(value)


def check_share(argument: str, value: Any) -> float:
    """Return a share above 0 and up to 1 as a `float`.

    Raises:
        ValueError: If it is not such a number.

    Examples:
        >>> check_share("mass", 0.9)
        0.9
    """
    if not _is_finite_number(value) or not 0 < value <= 1:
        raise ValueError(f"`{argument}`: expected a share above 0 and up to 1, got {value!r}")
    return float(value)


def check_choice(argument: str, value: Any, choices: Collection[str], *, or_else: str = "") -> str:
    """Return one of several words.

    Args:
        argument: The name of the user's argument, for the error.
        value: The value that the user passed.
        choices: The allowed words, in the order in which the error lists them.
        or_else: What else the caller accepts, for the error: `"a callable"`.

    Raises:
        ValueError: If it is not one of them.

    Examples:
        >>> check_choice("method", "adaptve", ("exact", "adaptive"))
        Traceback (most recent call last):
        ValueError: `method`: expected one of exact, adaptive, got 'adaptve'
    """
    if not isinstance(value, str) or value not in choices:
        alternative = f" or {or_else}" if or_else else ""
        raise ValueError(
            f"`{argument}`: expected one of {', '.join(choices)}{alternative}, got {value!r}"
        )
    return value


def check_module(model: Any, *, argument: str = "model") -> None:
    """Refuse anything but an `nn.Module`.

    Raises:
        TypeError: If it is not a module.

    Examples:
        >>> check_module(nn.Linear)
        Traceback (most recent call last):
        TypeError: `model`: expected an nn.Module, got the class Linear: call it first
    """
    if isinstance(model, nn.Module):
        return

    if isinstance(model, type) and issubclass(model, nn.Module):
        raise TypeError(
            f"`{argument}`: expected an nn.Module, got the class {model.__name__}: call it first"
        )
    raise TypeError(f"`{argument}`: expected an nn.Module, got {type(model).__name__}")


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
