"""Numbers that several verbs take."""


def check_counts(**numbers: int) -> None:
    """Raise for what is not a whole number of at least 1."""
    for name, value in numbers.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"`{name}`: expected a whole number of at least 1, got {value!r}")


def check_tolerances(**numbers: float) -> None:
    """Raise for what is not a number of at least 0; NaN is not."""
    for name, value in numbers.items():
        if not (isinstance(value, int | float) and value >= 0):
            raise ValueError(f"`{name}`: expected a number of at least 0, got {value!r}")
