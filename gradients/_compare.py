from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn

from gradients._dataset import make_dataset
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import find_group, mean_over
from gradients._recorders.shards import is_sharded
from gradients._rows import Row, make_row
from gradients._checks import check_losses, check_model, check_names
from resonance_toolkit import preserving, provenance

Losses = Mapping[str, Tensor] | Sequence[Tensor]


def compare(
    model: nn.Module,
    losses: Losses | Callable[[], Losses],
    *,
    seed: int = 0,
    group: Any = "auto",
) -> xr.Dataset:
    """Compare the gradients of several losses once, at the model's present parameters.

    Args:
        model: Any module but a `fully_shard` one, for which there is `Trace`. Left as it was.
        losses: Scalars by name or in order, of which each is differentiated by itself; their graph
            is kept, so that they can still be backpropagated. Or a callable that makes them,
            after which buffers and random states are put back too.
        seed: Of the random numbers that the callable draws, such as dropout.
        group: As for `Trace`.

    Returns:
        Dataset as of `Trace`, for two or for more losses, without `step`.

    Raises:
        ValueError: If the losses are not scalars, or none depends on the model.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> out = model(torch.eye(2))  # the gradient of each entry is one axis
        >>> found = compare(model, [out[0].sum(), out.sum()])
        >>> found["cosine_total"].round(4).item()
        0.7071
    """
    check_model(model)
    if is_sharded(model):
        raise ValueError("`model`: expected a module that is not sharded; use `Trace`")
    recorder = ParameterRecorder(model, separate=True)
    recorder.group = find_group(model, group)
    if callable(losses):
        with preserving(model):
            torch.manual_seed(seed)
            names, row = measure_once(recorder, losses())
    else:
        names, row = measure_once(recorder, losses)
    attrs = provenance("gradients.compare", model, seed=seed)
    found = make_dataset([row], recorder.layers, recorder.sizes, names, attrs)
    return found.isel(step=0, drop=True)


def measure_once(recorder: ParameterRecorder, losses: Losses) -> tuple[tuple[str, ...], Row]:
    """Differentiate each loss by itself: the names of the losses, and what was found."""
    if isinstance(losses, Mapping):
        parts, given = list(losses.values()), check_names(list(losses))
    elif isinstance(losses, Tensor) or not isinstance(losses, Sequence):
        kind = type(losses).__name__
        raise TypeError(f"`losses`: expected scalars by name or in order, got {kind}")
    else:
        parts, given = list(losses), None
    names = check_losses(parts, given)
    one = torch.ones_like(parts[0].detach())
    recorder.arm(parts, one, whole_update=True)
    measured = recorder.measure()
    values = torch.stack([loss.detach().double().reshape(()) for loss in parts])
    if recorder.group is not None:
        (values,) = mean_over(recorder.group, [values])
    one = torch.ones((), dtype=torch.float64, device=values.device)
    row = make_row(0, values, one, measured, recorder.owners, len(recorder.layers))
    return names, row
