from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._measures.numbers import dataset
from resonance_toolkit import provenance, select, unwrap

Weights: TypeAlias = nn.Module | Mapping[str, Tensor]


@torch.no_grad()
def drift(
    before: Weights, after: Weights, *, over: str | Sequence[str] | None = None
) -> xr.Dataset:
    """How far the weights of each layer went, relative to where they began.

    Args:
        before: A model, or a state dict (copy it before training: `model.state_dict()` alone
            shares memory with the model).
        after: The same, later.
        over: Names or patterns of the parameters that count; by default those of two or more
            dimensions, so neither biases nor norm parameters.

    Returns:
        Dataset over `layer` with `drift`, the Frobenius norm of the difference over that of
        `before` (NaN where that is zero), `displacement` and `initial_norm`. A layer with several
        parameters counts them as one vector.

    Raises:
        ValueError: If the two do not have the same parameters, or none counts.
        TypeError: If an argument is neither a model nor a mapping of tensors.

    Examples:
        >>> one = {"layer.weight": torch.eye(2)}
        >>> drift(one, {"layer.weight": 3 * torch.eye(2)})["drift"].values
        array([2.])
    """
    first, second = _tensors("before", before, after), _tensors("after", after, before)
    if odd := sorted(first.keys() ^ second.keys()):
        raise ValueError(f"`after`: expected the same names as `before`, differ in {odd[:5]}")
    for name, value in first.items():
        if value.shape != second[name].shape:
            shapes = tuple(value.shape), tuple(second[name].shape)
            raise ValueError(f"`after` at {name!r}: expected {shapes[0]}, got {shapes[1]}")
    matrices = [n for n, t in first.items() if t.dim() >= 2]
    chosen = matrices if over is None else select(first, over, argument="over")
    if not chosen:
        raise ValueError("`over`: no parameter has two or more dimensions; name some")
    squares: dict[str, list[float]] = {}
    for name in chosen:
        start, end = first[name].double().cpu(), second[name].double().cpu()
        layer = name.rpartition(".")[0]
        total = squares.setdefault(layer, [0.0, 0.0])
        total[0] += float((end - start).square().sum())
        total[1] += float(start.square().sum())
    moved, initial = np.sqrt(np.array(list(squares.values()))).T
    relative = np.full_like(moved, np.nan)
    np.divide(moved, initial, out=relative, where=initial > 0)
    model = after if isinstance(after, nn.Module) else before
    return dataset(
        {
            "drift": ("layer", relative, "displacement relative to the initial norm"),
            "displacement": ("layer", moved, "Frobenius norm of the change of the weights"),
            "initial_norm": ("layer", initial, "Frobenius norm of the weights at first"),
        },
        {"layer": (list(squares), "layer, in order of definition")},
        provenance("nudging.drift", model if isinstance(model, nn.Module) else None, over=over),
    )


def _tensors(argument: str, weights: Any, other: Any) -> dict[str, Tensor]:
    if isinstance(weights, nn.Module):
        return dict(unwrap(weights).named_parameters())
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise TypeError(
            f"`{argument}`: expected a model or a mapping of tensors, got {type(weights).__name__}"
        )
    unasked: set[str] = set()
    if isinstance(other, nn.Module):  # a state dict has buffers, too, and tied weights twice
        model = unwrap(other)
        unasked = model.state_dict().keys() - dict(model.named_parameters()).keys()
    return {n: t for n, t in weights.items() if t.is_floating_point() and n not in unasked}
