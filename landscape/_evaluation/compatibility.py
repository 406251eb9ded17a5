"""Losses and metrics of any signature, told apart by how many arguments they need.

(outputs, targets)   "outputs"
(model, x, y)        "closure"
(model)              "model", for metrics alone; metrics of the loss-landscapes library too
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from torch import nn

Measure = Callable[..., Any]
Kind = Literal["outputs", "closure", "model"]

_KINDS: dict[int, Kind] = {1: "model", 2: "outputs", 3: "closure"}


def kind_of(measure: Measure, argument: str) -> Kind:
    """Tell what a loss or metric is called with.

    Args:
        measure: What the user gave.
        argument: The name of the user's argument, for the error.

    Raises:
        TypeError: If it cannot be called, or with none of the signatures above.
    """
    if not callable(measure):
        raise TypeError(f"`{argument}`: expected a callable, got {type(measure).__name__}")
    if _is_from_loss_landscapes(measure):
        return "model"

    function = measure.forward if isinstance(measure, nn.Module) else measure
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return "outputs"

    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is p.empty]

    takes_any_number = any(p.kind == inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if takes_any_number and not required:
        return "outputs"

    if len(required) not in _KINDS:
        raise TypeError(
            f"`{argument}`: expected a callable of (outputs, targets), (model, x, y) or, for a "
            f"metric, (model), got one with {len(required)} arguments"
        )
    return _KINDS[len(required)]


def evaluate_on_model(metric: Measure, model: nn.Module) -> float:
    """The value of a metric of kind "model"."""
    # Metrics of loss-landscapes expect the library's own wrapper around the model.
    if _is_from_loss_landscapes(metric):
        wrapper = import_module("loss_landscapes.model_interface.model_wrapper")
        return float(metric(wrapper.wrap_model(model)))
    return float(metric(model))


def _is_from_loss_landscapes(measure: Measure) -> bool:
    return any(c.__module__.startswith("loss_landscapes.") for c in type(measure).__mro__)
