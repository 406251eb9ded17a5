from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._measures.numbers import make_dataset
from resonance_toolkit import provenance, select, unwrap

Weights: TypeAlias = nn.Module | Mapping[str, Tensor]


@torch.no_grad()
def drift(
    before: Weights, after: Weights, *, over: str | Sequence[str] | None = None
) -> xr.Dataset:
    """Measure how far the weights of each layer moved, relative to their initial norm.

    Args:
        before: A model, or a state dict (copy it before training: `model.state_dict()` alone
            shares memory with the model).
        after: The same model or its state, later.
        over: Names or patterns of the parameters that count; by default those of two or more
            dimensions, so neither biases nor the parameters of norms.

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
    tensors_before = _tensors_of("before", before, after)
    tensors_after = _tensors_of("after", after, before)
    _check_same_shapes(tensors_before, tensors_after)

    if over is None:
        names = [name for name, tensor in tensors_before.items() if tensor.dim() >= 2]
    else:
        names = select(tensors_before, over, argument="over")
    if not names:
        raise ValueError("`over`: no parameter has two or more dimensions; name some")

    # A layer with several parameters counts them as one vector: squares add up.
    squared_norms: dict[str, list[float]] = {}
    for name in names:
        start = tensors_before[name].cpu().double()
        end = tensors_after[name].cpu().double()
        layer = name.rpartition(".")[0]

        total = squared_norms.setdefault(layer, [0.0, 0.0])
        total[0] += float((end - start).square().sum())
        total[1] += float(start.square().sum())

    displacement, initial_norm = np.sqrt(np.array(list(squared_norms.values()))).T
    relative = np.full_like(displacement, np.nan)
    np.divide(displacement, initial_norm, out=relative, where=initial_norm > 0)

    model = after if isinstance(after, nn.Module) else before
    return make_dataset(
        {
            "drift": ("layer", relative, "displacement relative to the initial norm"),
            "displacement": ("layer", displacement, "Frobenius norm of the change of the weights"),
            "initial_norm": ("layer", initial_norm, "Frobenius norm of the weights at first"),
        },
        {"layer": (list(squared_norms), "name of the module, in order of definition")},
        provenance("nudging.drift", model if isinstance(model, nn.Module) else None, over=over),
    )


def _tensors_of(argument: str, weights: Any, counterpart: Any) -> dict[str, Tensor]:
    """Return parameters by name; of a state dict, those that its counterpart has, too."""
    if isinstance(weights, nn.Module):
        return dict(unwrap(weights).named_parameters())
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise TypeError(
            f"`{argument}`: expected a model or a mapping of tensors, got {type(weights).__name__}"
        )

    # A state dict has buffers, too, and tied weights twice; a model tells which these are.
    no_parameters: set[str] = set()
    if isinstance(counterpart, nn.Module):
        model = unwrap(counterpart)
        no_parameters = model.state_dict().keys() - dict(model.named_parameters()).keys()
    return {
        name: tensor
        for name, tensor in weights.items()
        if tensor.is_floating_point() and name not in no_parameters
    }


def _check_same_shapes(
    tensors_before: Mapping[str, Tensor], tensors_after: Mapping[str, Tensor]
) -> None:
    if unmatched := sorted(tensors_before.keys() ^ tensors_after.keys()):
        raise ValueError(f"`after`: expected the same names as `before`, differ in {unmatched[:5]}")

    for name, tensor in tensors_before.items():
        expected_shape = tuple(tensor.shape)
        actual_shape = tuple(tensors_after[name].shape)
        if actual_shape != expected_shape:
            raise ValueError(f"`after` at {name!r}: expected {expected_shape}, got {actual_shape}")
