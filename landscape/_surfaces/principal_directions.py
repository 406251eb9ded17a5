import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from landscape._directions.draw import random_direction
from landscape._directions.parameters import Params, moving_tensors
from landscape._directions.states import State, combine, difference, read_state
from landscape._directions.vectors import dot, norm, orthogonalise

Array = NDArray[np.float64]


def principal_directions(
    model: nn.Module, checkpoints: Sequence[State], *, over: str | Sequence[str] | None = None
) -> tuple[Params, Params]:
    """The two directions in which checkpoints vary most, for `grid(directions=...)`.

    Args:
        model: A model of the same architecture; left as it was found.
        checkpoints: Three or more models or state dicts.
        over: Which parameters to cover, as in `grid`.

    Returns:
        Two orthonormal mappings of tensors by parameter name.

    Raises:
        ValueError: If there are fewer than three checkpoints, or they do not fit or do not move.

    Examples:
        >>> import torch
        >>> path = [{"weight": torch.tensor([[2.0 * i, float(i % 2)]])} for i in range(5)]
        >>> first, second = principal_directions(nn.Linear(2, 1, bias=False), path)
        >>> first["weight"].abs().round(decimals=3) + 0
        tensor([[1., 0.]])
    """
    if not isinstance(checkpoints, Sequence) or len(checkpoints) < 3:
        raise ValueError("`checkpoints`: expected three or more models or state dicts, in order")
    moving = moving_tensors(model, over, None)
    last = read_state(checkpoints[-1], moving, "checkpoints[-1]")
    return principal_components(checkpoints, last)[0]


def principal_components(
    checkpoints: Sequence[State], last: Params
) -> tuple[tuple[Params, Params], Array]:
    """First two principal components, orthonormal, and their shares of the variance.

    From the matrix of inner products between checkpoints: no array of all of them is made.
    """
    steps = [difference(c, last, f"checkpoints[{i}]") for i, c in enumerate(checkpoints)]
    products = np.array([[dot(one, two) for two in steps] for one in steps])
    if not np.isfinite(products).all():
        raise ValueError("`checkpoints`: expected finite weights, got NaN or inf")
    centring = np.eye(len(steps)) - 1 / len(steps)
    values, vectors = np.linalg.eigh(centring @ products @ centring)
    if not values[-1] > 0:
        raise ValueError(
            "`checkpoints`: expected weights that change, got the same ones throughout"
        )
    shares = np.maximum(values[::-1], 0) / np.maximum(values, 0).sum()
    shares[1] = shares[1] if shares[1] > 1e-12 else 0.0
    first = combine((centring @ vectors[:, -1] / math.sqrt(values[-1])).tolist(), steps)
    if shares[1]:
        second = combine((centring @ vectors[:, -2] / math.sqrt(values[-2])).tolist(), steps)
    else:
        second = _any_orthogonal(first)
    return (_fixed_sign(first), _fixed_sign(second)), shares[:2]


def _any_orthogonal(first: Params) -> Params:
    if sum(tensor.numel() for tensor in first.values()) < 2:
        raise ValueError("`checkpoints`: expected two or more numbers to move, got one")
    second = random_direction(first, seed=0, axis=1)
    orthogonalise([first, second])
    length = norm(second)
    return {name: tensor / length for name, tensor in second.items()}


def _fixed_sign(direction: Params) -> Params:
    """Make the sum of all numbers positive: eigenvectors come with either sign."""
    total = sum(tensor.double().sum().item() for tensor in direction.values())
    return direction if total >= 0 else {name: -tensor for name, tensor in direction.items()}
