"""Values at points as a labelled Dataset."""

import math
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from landscape._directions.vectors import cosine, norm
from landscape._evaluation.points import Evaluation
from landscape._evaluation.problem import Attributes, Problem, describe
from resonance_toolkit import provenance

Array = NDArray[np.float64]

_AXIS_NAMES = {
    "alpha": "distance along the first direction",
    "beta": "distance along the second direction",
}
_LONG_NAMES = {
    "loss": "mean loss",
    "loss_se": "standard error of the mean loss over samples",
    "accuracy": "share of samples classified correctly",
}


def as_surface(
    values: dict[str, Array],
    coordinates: dict[str, Array],
    *,
    attributes: Attributes,
    evaluated: NDArray[np.bool_] | None = None,
) -> xr.Dataset:
    """Reshape columns of values over a plane (or line) to variables over its coordinates."""
    dims = tuple(coordinates)
    shape = tuple(len(coordinate) for coordinate in coordinates.values())
    is_evaluated = np.ones(shape, bool) if evaluated is None else evaluated.reshape(shape)

    variables: dict[str, tuple[Any, ...]] = {
        name: (dims, column.reshape(shape), {"long_name": _LONG_NAMES.get(name, name)})
        for name, column in values.items()
    }
    variables["evaluated"] = (dims, is_evaluated, {"long_name": "evaluated, not interpolated"})

    counts = {
        "n_evaluations": int(is_evaluated.sum()),
        "n_non_finite": int((~np.isfinite(values["loss"])).sum()),
    }
    return xr.Dataset(
        variables,
        coords={
            name: (name, coordinate, {"long_name": _AXIS_NAMES[name]})
            for name, coordinate in coordinates.items()
        },
        attrs=attributes | counts,
    )


def attributes_of(evaluation: Evaluation, verb: str, **settings: Any) -> Attributes:
    """Say what was evaluated, and how: settings of the verb first, then what all verbs tell."""
    problem = evaluation.problem
    facts = describe(problem, draws_random_numbers=evaluation.plan.reseed)
    return provenance(verb, problem.measurement.model, **settings, **facts)


def plane_attributes(problem: Problem) -> Attributes:
    """Lengths of the two axes of a plane, and the angle between them."""
    first, second = problem.axes
    return {
        "length_alpha": norm(first),
        "length_beta": norm(second),
        "cosine_of_axes": cosine(first, second),
        "length_on_model": _length_on_model(problem),
    }


def _length_on_model(problem: Problem) -> float:
    """Mean length of the axes, without what they cover of `extra`."""
    names = [name for name in problem.tensors if not name.startswith("extra.")]
    lengths = [math.hypot(*(norm({name: axis[name]}) for name in names)) for axis in problem.axes]
    return sum(lengths) / len(lengths)
