"""Losses and metrics of any signature, told apart by how many arguments they need.

(outputs, targets)   "outputs"
(model, x, y)        "closure"
(model)              "model", for metrics alone; metrics of the loss-landscapes library too
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from torch import nn

from resonance_toolkit import count_arguments

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

    # What does not say how it is called is called as torch's losses are.
    n_arguments = count_arguments(measure)
    if n_arguments is None:
        return "outputs"

    if n_arguments not in _KINDS:
        raise TypeError(
            f"`{argument}`: expected a callable of (outputs, targets), (model, x, y) or, for a "
            f"metric, (model), got one with {n_arguments} arguments"
        )
    return _KINDS[n_arguments]


def evaluate_on_model(metric: Measure, model: nn.Module) -> float:
    """The value of a metric of kind "model"."""
    # Metrics of loss-landscapes expect the library's own wrapper around the model.
    if _is_from_loss_landscapes(metric):
        wrapper = import_module("loss_landscapes.model_interface.model_wrapper")
        return float(metric(wrapper.wrap_model(model)))
    return float(metric(model))


def _is_from_loss_landscapes(measure: Measure) -> bool:
    return any(c.__module__.startswith("loss_landscapes.") for c in type(measure).__mro__)
