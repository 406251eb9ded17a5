"""Methods that stay out of compiled code, without loading the compiler to say so.

`torch.compiler.disable` loads the compiler, which takes nearly as long as torch itself. Here a
method is only noted down when its class is made; the first `attach` of a process, which needs the
compiler anyway, calls `keep_out_of_compiled_code`.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# Owner, name and function of every method noted down that is not wrapped yet.
_noted: list[tuple[type, str, Callable[..., Any]]] = []


def never_compiled(method: Function) -> Function:
    """Leave a method out of compiled code, as `torch.compiler.disable` does, and keep its type.

    Examples:
        >>> class Distance:
        ...     @never_compiled
        ...     def measure(self, x):
        ...         return abs(x)
        >>> Distance().measure(-3)
        3
    """
    return cast(Function, _Noted(method))


def keep_out_of_compiled_code() -> None:
    """Wrap all methods that were noted down; asking twice is fine."""
    while _noted:
        owner, name, method = _noted.pop()
        setattr(owner, name, torch.compiler.disable(method))


class _Noted:
    """Stands for a method until its class is made, and then gives the method its place."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method

    def __set_name__(self, owner: type, name: str) -> None:
        setattr(owner, name, self.method)
        _noted.append((owner, name, self.method))
