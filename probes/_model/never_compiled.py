from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def never_compiled(function: Function) -> Function:
    """Leave a function out of compiled code, as `torch.compiler.disable` does, and keep its type.

    Torch's own decorator is untyped: to an editor, what it decorates would return `Any`.

    Examples:
        >>> never_compiled(abs)(-3)
        3
    """
    disabled: Function = torch.compiler.disable(function)
    return disabled
