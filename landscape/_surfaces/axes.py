"""The axes of a surface: from a name or given tensors to two normalised directions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from landscape._curvature.eigenvectors import top_vectors
from landscape._curvature.matrix import Curvature, gradient
from landscape._directions.draw import draw_axes, random_direction
from landscape._directions.parameters import Extra, Params, owners
from landscape._directions.random_directions import Direction
from landscape._directions.vectors import (
    NORMALISATIONS,
    given_direction,
    norm,
    normalise,
    orthogonalise,
)
from landscape._evaluation.point import Scene

Directions = str | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]
_MEMORY = 2**31  # bytes of retained graphs
KINDS = ("random", "gradient", "hessian")


def check_directions(directions: Directions, normalisation: str | None) -> str:
    """Refuse what cannot be directions, and settle the normalisation.

    Returns:
        The normalisation: as asked for; else `filter` for random directions, `none` for given ones
        and `unit` for the gradient and eigenvectors, whose proportions mean something.
    """
    if normalisation is not None and normalisation not in NORMALISATIONS:
        known = " | ".join(NORMALISATIONS)
        raise ValueError(f"`normalisation`: expected {known}, got {normalisation!r}")
    if isinstance(directions, str):
        if directions not in KINDS:
            raise ValueError(
                f"`directions`: expected {' | '.join(KINDS)} or tensors by name, got {directions!r}"
            )
        return normalisation or ("filter" if directions == "random" else "unit")
    wanted = "`directions`: expected one or two mappings of tensors by parameter name"
    if not isinstance(directions, Mapping | Sequence):
        raise TypeError(f"{wanted}, got {type(directions).__name__}")
    given: list[Any] = [directions] if isinstance(directions, Mapping) else list(directions)
    if len(given) not in (1, 2) or not all(isinstance(d, Mapping) for d in given):
        raise ValueError(f"{wanted}, got [{', '.join(type(d).__name__ for d in given)}]")
    for name, tensor in ((name, tensor) for d in given for name, tensor in d.items()):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"`directions` at {name!r}: expected a tensor, got {type(tensor).__name__}"
            )
    return normalisation or "none"


def with_axes(
    scene: Scene, directions: Directions, how: str, extra: Extra | None, *, count: int = 2
) -> Scene:
    """Add one or two directions to a scene."""
    moving, seed, held = scene.moving, scene.seed, owners(scene.model, extra)
    alone = isinstance(directions, str | Mapping) or len(directions) < count
    if alone and count > sum(tensor.numel() for tensor in moving.values()):
        raise ValueError("`over`: nothing is orthogonal to the first direction of one number")
    axes: Sequence[Direction]
    if directions == "random":
        axes = draw_axes(moving, held, how, seed, count)
    else:
        axes = written = _other_axes(scene, directions, how, count)
        for own in written:
            normalise(own, moving, held, how)
    for number, axis in enumerate(axes):
        if not norm(axis):
            raise ValueError(
                f"`directions`: number {number} is zero after normalisation {how!r}: nothing moves"
            )
    return replace(scene, axes=tuple(axes))


def _other_axes(scene: Scene, directions: Directions, how: str, count: int) -> list[Params]:
    moving, seed = scene.moving, scene.seed
    if isinstance(directions, str):
        about = Curvature(
            scene.model, moving, scene.batches, scene.objective, "hessian", scene.n_samples, _MEMORY
        )
        axes = (
            [gradient(about)] if directions == "gradient" else top_vectors(about, count, seed=seed)
        )
    else:
        given = [directions] if isinstance(directions, Mapping) else directions
        axes = [given_direction(d, moving, copy=how != "none") for d in given]
    if len(axes) < count:
        axes += [random_direction(moving, seed, axis) for axis in range(len(axes), count)]
        orthogonalise(axes)  # what is drawn here to what was given; given ones stay as they are
    return axes
