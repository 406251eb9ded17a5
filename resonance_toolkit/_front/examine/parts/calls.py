"""Calls as text: what a user types to repeat a number by hand."""

from typing import Any

from resonance_toolkit import name_of
from resonance_toolkit._front.examine.settings import describe_alpha
from resonance_toolkit._front.examine.subject import Subject


def write_call(function: str, *positional: str, **settings: Any) -> str:
    """Write a call; settings that are None are left out.

    Examples:
        >>> write_call("landscape.grid", "model", "data", method="adaptive", loss=None, seed=0)
        "landscape.grid(model, data, method='adaptive', seed=0)"
    """
    arguments = list(positional)
    for name, value in settings.items():
        if value is not None:
            arguments.append(f"{name}={_write_value(value)}")
    return f"{function}({', '.join(arguments)})"


def write_attach(subject: Subject, *, name: str = "probe") -> str:
    """Write how the branches were attached."""
    settings = subject.settings
    layers = [] if subject.layers is None else [repr(subject.layers)]
    call = write_call(
        "probes.attach", "model", *layers, n=settings.n, seed=settings.seed, sample=Verbatim("x")
    )
    alpha = f", alpha={describe_alpha(settings.alpha)})"
    return f"{name} = {call[:-1]}{alpha}"


class Verbatim(str):
    """Text that stands in a call as it is."""

    __slots__ = ()


def _write_value(value: Any) -> str:
    if isinstance(value, Verbatim):
        return str(value)
    return name_of(value) if callable(value) else repr(value)
