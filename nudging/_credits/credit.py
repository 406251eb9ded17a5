"""What a credit is, how it is checked at the door of a verb, and what it is called in a result.

A credit is any callable from a `State` to one tensor per block. Ours are made by a call:
`nudging.random(seed=1)`, `nudging.direct_feedback()`, `nudging.StateBridge()`. The easiest slip is
to leave out that call, which the door must notice, since a factory is a callable as well.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from nudging._replay.state import State
from resonance_toolkit import name_of

Credit: TypeAlias = Callable[[State], Mapping[str, Tensor]]
_Factory = TypeVar("_Factory", bound=Callable[..., Any])

_FACTORIES: set[Callable[..., Any]] = set()


def credit_factory(factory: _Factory) -> _Factory:
    """Mark a function that makes credits, and is none."""
    _FACTORIES.add(factory)
    return factory


def check_credit(credit: Any) -> None:
    """Refuse what cannot be called, and what has to be called first."""
    if not callable(credit):
        raise TypeError(
            f"`credit`: expected a callable (state) -> mapping, got {type(credit).__name__}"
        )

    # `partial(nudging.random, seed=1)` is as uncalled as `nudging.random`.
    function = credit
    while isinstance(function, partial):
        function = function.func

    if isinstance(function, type) and _makes_callables(function):
        name = function.__name__
        package = "nudging." if function.__module__.startswith("nudging.") else ""
        raise TypeError(
            f"`credit`: expected a credit, got the class {name}: call it first, {package}{name}()"
        )
    if not isinstance(function, type) and _is_factory(function):
        name = function.__name__
        raise TypeError(
            f"`credit`: expected a credit, got the function {name}, which makes one: call it "
            f"first, nudging.{name}({'loss' if name == 'auxiliary' else ''})"
        )


def describe_credit(credit: Any) -> str:
    """Name a credit and its settings, in the same words in every process."""
    settings: Mapping[str, Any]
    if dataclasses.is_dataclass(credit) and not isinstance(credit, type):
        fields = [field.name for field in dataclasses.fields(credit) if field.repr]
        settings = {name: getattr(credit, name) for name in fields}
    elif isinstance(getattr(credit, "settings", None), Mapping):
        # Sorted, since settings that come from a file are in another order.
        settings = dict(sorted(credit.settings.items()))
    else:
        return _describe_value(credit)
    return f"{type(credit).__name__}({list_settings(settings)})"


def list_settings(settings: Mapping[str, Any]) -> str:
    """Write settings as they stand in a call."""
    return ", ".join(f"{name}={_describe_value(value)}" for name, value in settings.items())


def _makes_callables(cls: type) -> bool:
    # Not `callable(cls)`, which every class is. A class without it may be a credit itself, say a
    # dict that takes a state.
    return any("__call__" in vars(base) for base in cls.__mro__)


def _is_factory(function: Callable[..., Any]) -> bool:
    # A callable of the user's may have no hash.
    return any(function is factory for factory in _FACTORIES)


def _describe_value(value: Any) -> str:
    if callable(value):
        return name_of(value)
    return (
        repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    )
