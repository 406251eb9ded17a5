from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from resonance_toolkit._base.all_modules import all_modules
from resonance_toolkit._base.find_layers import unwrap

Attribute = str | int | float


def provenance(
    verb: str, model: nn.Module | None = None, /, **settings: Any
) -> dict[str, Attribute]:
    """Say what made a result, from what, with which settings, as netCDF attributes.

    The same inputs give the same attributes: no times, no paths, no addresses.

    Args:
        verb: The public name of what made the result, such as `"landscape.grid"`.
        model: The model measured, if there is one.
        settings: Arguments worth keeping. None becomes `"none"`, a bool 0 or 1, a sequence a
            comma-separated string, a callable its name.

    Examples:
        >>> attrs = provenance("landscape.line", nn.Linear(2, 1), seed=0, over=["a", "b"], bn=None)
        >>> attrs["model"], attrs["n_parameters"], attrs["over"], attrs["bn"]
        ('Linear', 3, 'a, b', 'none')
    """
    attributes: dict[str, Attribute] = {
        "made_by": verb,
        "toolkit_version": _toolkit_version(),
        "torch_version": str(torch.__version__),  # a subclass that netCDF refuses
    }
    if model is not None:
        inner = unwrap(model)
        attributes["model"] = type(inner).__name__
        owned = (p for module in all_modules(inner) for p in module._parameters.values())
        once = {id(p): p for p in owned if p is not None}
        attributes["n_parameters"] = sum(p.numel() for p in once.values())
    return attributes | {name: _plain(value) for name, value in settings.items()}


@cache
def _toolkit_version() -> str:
    return version("resonance-toolkit")  # reads a file


def _plain(value: Any) -> Attribute:
    match value:
        case None:
            return "none"
        case bool():
            return int(value)
        case str() | int() | float():
            return value
        case Mapping():
            return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items())
        case Sequence():
            return ", ".join(str(_plain(item)) for item in value)
        case _ if callable(value):
            return str(getattr(value, "__qualname__", type(value).__qualname__))
    return str(value)
