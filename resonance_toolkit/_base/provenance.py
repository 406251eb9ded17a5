from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from resonance_toolkit._base.facts import all_modules, name_of
from resonance_toolkit._base.find_layers import unwrap

Attribute = str | int | float

# The number of pyproject.toml, which a clone that is not installed cannot ask for.
_SOURCE_VERSION = "0.1.0"


def find_version() -> str:
    """Return the installed version; of a clone that is not installed, the source's, and say so.

    Examples:
        >>> find_version().split("+")[0]
        '0.1.0'
    """
    try:
        return version("resonance-toolkit")
    except PackageNotFoundError:
        return f"{_SOURCE_VERSION}+not-installed"


__version__ = find_version()


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
        "toolkit_version": __version__,
        "torch_version": str(torch.__version__),  # a subclass that netCDF refuses
    }

    if model is not None:
        inner_model = unwrap(model)
        attributes["model"] = type(inner_model).__name__
        attributes["n_parameters"] = _count_parameters(inner_model)

    return attributes | {name: _as_attribute(value) for name, value in settings.items()}


def _count_parameters(model: nn.Module) -> int:
    # Not `model.parameters()`, which takes three times as long on a large model.
    parameters = (p for module in all_modules(model) for p in module._parameters.values())

    # By identity: tied weights count once.
    distinct = {id(parameter): parameter for parameter in parameters if parameter is not None}
    return sum(parameter.numel() for parameter in distinct.values())


def _as_attribute(value: Any) -> Attribute:
    match value:
        case None:
            return "none"
        case bool():
            return int(value)
        case str() | int() | float():
            return value
        case Mapping():
            return ", ".join(f"{key}: {_as_attribute(item)}" for key, item in value.items())
        case Sequence():
            return ", ".join(str(_as_attribute(item)) for item in value)
        case _ if callable(value):
            return name_of(value)
    return str(value)
