"""Limits that several verbs take."""

from numbers import Real


def check_limits(**limits: float) -> None:
    """Raise for what is not a number of at least 0; infinity is one, and means no limit."""
    for name, value in limits.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)

        # Written so that NaN, which compares with nothing, is refused.
        if not (is_number and value >= 0):
            raise ValueError(f"`{name}`: expected a number of at least 0, got {value!r}")
