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


def write_attach(subject: Subject) -> str:
    """Write how the branches were attached, to inputs like `x`."""
    settings = subject.settings
    layers = [] if subject.layers is None else [repr(subject.layers)]
    call = write_call(
        "probes.attach",
        "model",
        *layers,
        n=settings.n,
        loss=subject.branch_loss,
        seed=settings.seed,
        sample=Verbatim("x"),
    )
    alpha = f", alpha={describe_alpha(settings.alpha)})"
    return f"{call[:-1]}{alpha}"


def write_sample(subject: Subject) -> str:
    """Write where the inputs come from by which branches learn shapes."""
    return (
        write_call(
            "x, _ = resonance.take",
            "data",
            "2",
            seed=subject.settings.seed,
            model=Verbatim("model"),
            has_loss=True if subject.settings.loss is not None else None,
        )
        + "[0]"
    )


def write_main_loss(subject: Subject) -> str:
    """Write the main loss as a function of model, inputs and targets."""
    loss = subject.settings.loss
    outputs = "resonance.call_model(model, x)"
    if loss is not None and subject.loss.calls_model:
        return f"main_loss = {name_of(loss)}"
    if loss is not None:
        return f"main_loss = lambda model, x, y: {name_of(loss)}({outputs}, y).mean()"
    return f"main_loss = lambda model, x, y: resonance.default_loss([y])({outputs}, y).mean()"


class Verbatim(str):
    """Text that stands in a call as it is."""

    __slots__ = ()


def _write_value(value: Any) -> str:
    if isinstance(value, Verbatim):
        return str(value)
    return name_of(value) if callable(value) else repr(value)
