"""The axes of a surface: directions from a name or given tensors, and coordinates along them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from landscape._curvature.estimates import top_vectors
from landscape._curvature.matrix import gradient
from landscape._curvature.setup import matrix_of
from landscape._directions.parameters import (
    Extra,
    Params,
    module_by_tensor_name,
    tensors_to_move,
)
from landscape._directions.random_directions import draw_directions, random_direction
from landscape._directions.vectors import (
    NORMALISATIONS,
    Direction,
    Normalisation,
    norm,
    normalise,
    orthogonalise,
    read_direction,
)
from landscape._evaluation.problem import (
    Measurement,
    PointProbe,
    Problem,
    Request,
    make_measurement,
)
from resonance_toolkit import check_choice, check_module, check_positive, check_whole

Array = NDArray[np.float64]
DirectionName = Literal["random", "gradient", "hessian"]
Directions = DirectionName | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]

# Bytes of retained graphs, and the precision of eigenvectors that are only to be looked along:
# the defaults of `eigenvectors`.
_MEMORY = 2**31
_TOLERANCE = 1e-3
_MAX_PRODUCTS = 200


@dataclass(frozen=True)
class DirectionChoice:
    """Along which directions a model is to move, checked.

    Attributes:
        directions: A name, or one or two mappings of tensors.
        normalisation: How they are scaled.
        over: Which parameters they cover; None takes trained weights.
        extra: What they cover beside the model.
        count: How many there are to be.
    """

    directions: Directions
    normalisation: Normalisation
    over: str | Sequence[str] | None
    extra: Extra | None
    count: int

    @property
    def name(self) -> str:
        """For attributes: the name of the directions, or "given"."""
        return self.directions if isinstance(self.directions, str) else "given"


def plane_coordinates(
    size: int | tuple[int, int], span: float | tuple[float, float]
) -> tuple[Array, Array]:
    """Check `size` and `span`, and lay out both axes; 0 is exactly 0 where it is a point."""
    sizes = size if isinstance(size, tuple) else (size, size)
    spans = span if isinstance(span, tuple) else (span, span)
    if len(sizes) != 2:
        raise ValueError(f"`size`: expected a whole number of at least 2, or two, got {size!r}")
    if len(spans) != 2:
        raise ValueError(f"`span`: expected a positive, finite number, or two, got {span!r}")

    checked_sizes = [check_whole("size", n, at_least=2) for n in sizes]
    checked_spans = [check_positive("span", s) for s in spans]

    # Whole numbers over a whole number: symmetric to the last bit, unlike np.linspace.
    alphas, betas = (
        half_width * np.arange(1 - n, n, 2, dtype=float) / (n - 1)
        for n, half_width in zip(checked_sizes, checked_spans, strict=True)
    )
    return alphas, betas


def either_spelling(
    normalisation: Normalisation | None, normalization: Normalisation | None
) -> Normalisation | None:
    """The normalisation, whichever way the user spells it."""
    if normalisation is not None and normalization is not None:
        raise ValueError(
            "`normalization`: is another spelling of `normalisation`; expected one of them, got "
            f"{normalization!r} and {normalisation!r}"
        )
    return normalization if normalisation is None else normalisation


def choose_directions(
    directions: Directions,
    normalisation: Normalisation | None,
    *,
    over: str | Sequence[str] | None,
    extra: Extra | None,
    count: int = 2,
) -> DirectionChoice:
    """Refuse what cannot be directions, and settle the normalisation.

    By default that is `filter` for random directions, `none` for given ones and `unit` for the
    gradient and eigenvectors, whose proportions mean something.
    """
    if normalisation is not None:
        check_choice("normalisation", normalisation, NORMALISATIONS)

    default: Normalisation
    if isinstance(directions, str):
        check_choice("directions", directions, get_args(DirectionName), or_else="tensors by name")
        default = "filter" if directions == "random" else "unit"
    else:
        _check_mappings(directions)
        default = "none"

    return DirectionChoice(directions, normalisation or default, over, extra, count)


def make_problem_along(
    model: nn.Module,
    request: Request,
    choice: DirectionChoice,
    *,
    settings: Mapping[str, Any] | None = None,
    make_probe: Callable[[Measurement, Params], PointProbe] | None = None,
) -> Problem:
    """Make the problem of moving a model along directions, some of which depend on the loss.

    Args:
        model: The model.
        request: What to measure.
        choice: Along which directions.
        settings: How the axes came about, for attributes and checkpoints.
        make_probe: Makes what else is measured at each point, if anything.
    """
    check_module(model)
    tensors = tensors_to_move(model, choice.over, choice.extra)
    measurement = make_measurement(model, request)
    probe = make_probe(measurement, tensors) if make_probe is not None else None

    axes = _make_axes(measurement, tensors, choice)
    for number, axis in enumerate(axes):
        if not norm(axis):
            raise ValueError(
                f"`directions`: number {number} is zero after normalisation "
                f"{choice.normalisation!r}: nothing moves"
            )
    return Problem(measurement, tensors, tuple(axes), settings or {}, probe)


def _check_mappings(directions: Any) -> None:
    expectation = "`directions`: expected one or two mappings of tensors by parameter name"
    if not isinstance(directions, Mapping | Sequence):
        raise TypeError(f"{expectation}, got {type(directions).__name__}")

    mappings: list[Any] = _as_list(directions)
    if len(mappings) not in (1, 2) or not all(isinstance(m, Mapping) for m in mappings):
        raise ValueError(f"{expectation}, got [{', '.join(type(m).__name__ for m in mappings)}]")

    for mapping in mappings:
        for name, tensor in mapping.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"`directions` at {name!r}: expected a tensor, got {type(tensor).__name__}"
                )


def _as_list(directions: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]) -> list[Any]:
    return [directions] if isinstance(directions, Mapping) else list(directions)


def _make_axes(
    measurement: Measurement, tensors: Params, choice: DirectionChoice
) -> Sequence[Direction]:
    # Of two directions, a second one that is not given is made orthogonal to the first.
    is_single = isinstance(choice.directions, str | Mapping)
    draws_orthogonal = is_single or len(choice.directions) < choice.count
    if draws_orthogonal and choice.count > sum(t.numel() for t in tensors.values()):
        raise ValueError(
            "`over`: expected at least two numbers to move, got one, which leaves nothing for a "
            "second, orthogonal direction"
        )

    modules = module_by_tensor_name(measurement.model, choice.extra)
    seed = measurement.seed

    # Random directions are held in half the memory, so they have a way of their own.
    if choice.directions == "random":
        return draw_directions(
            tensors, modules, choice.normalisation, seed=seed, count=choice.count
        )

    axes = _axes_written_out(measurement, tensors, choice)
    for axis in axes:
        normalise(axis, tensors, modules, choice.normalisation)
    return axes


def _axes_written_out(
    measurement: Measurement, tensors: Params, choice: DirectionChoice
) -> list[Params]:
    seed = measurement.seed

    if isinstance(choice.directions, str):
        hessian = matrix_of(measurement, tensors, "hessian", _MEMORY)
        if choice.directions == "gradient":
            axes = [gradient(hessian)]
        else:
            axes = top_vectors(hessian, choice.count, _TOLERANCE, _MAX_PRODUCTS, seed)
    else:
        # Normalised in place below, so that the user's tensors must not be among them.
        copy = choice.normalisation != "none"
        axes = [read_direction(d, tensors, copy=copy) for d in _as_list(choice.directions)]

    # What is drawn here is made orthogonal to what was given; given ones stay as they are.
    if len(axes) < choice.count:
        missing = range(len(axes), choice.count)
        axes += [random_direction(tensors, seed, axis) for axis in missing]
        orthogonalise(axes)
    return axes
