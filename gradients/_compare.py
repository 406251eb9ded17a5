from collections.abc import Callable

import xarray as xr
from torch import nn

from gradients._checks import Group, check_unsharded
from gradients._dataset import make_dataset
from gradients._measure_losses import Losses, measure_losses
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import find_group
from resonance_toolkit import check_module, devices_of, preserving, provenance, seed_generators


def compare(
    model: nn.Module,
    losses: Losses | Callable[[], Losses],
    *,
    seed: int = 0,
    group: Group = "auto",
) -> xr.Dataset:
    """Compare the gradients of several losses once, at the model's current parameters.

    Args:
        model: Any module that is not sharded (for `fully_shard` there is `Trace`). Left as it was.
        losses: Scalars by name or in order. Each one is differentiated by itself, and their graph
            is kept, so that you can still backpropagate them. Or a callable that returns such
            losses; buffers and random states are restored after it, too.
        seed: Determines random numbers that the callable draws, such as dropout.
        group: Processes to average gradients over: "auto" for those of the wrapper, a
            `ProcessGroup`, or None for this process alone.

    Returns:
        Dataset as returned by `Trace.to_dataset`, but without `step`.

    Raises:
        ValueError: If the losses are not scalars, or none depends on the model, or the model is
            sharded.

    Examples:
        >>> import torch
        >>> model = nn.Linear(2, 1, bias=False)
        >>> out = model(torch.eye(2))  # the gradient of each entry is one axis
        >>> agreement = compare(model, [out[0].sum(), out.sum()])
        >>> agreement["cosine_total"].round(4).item()
        0.7071
    """
    check_module(model)
    check_unsharded(model, hint="; use `Trace` with `fully_shard`")

    recorder = ParameterRecorder(model, separate=True)
    recorder.group = find_group(model, group)

    # What makes losses runs the model, which may count a batch or draw dropout; losses that are
    # made already cannot disturb anything.
    if callable(losses):
        with preserving(model):
            seed_generators(seed, devices_of(model))
            names, update = measure_losses(recorder, losses())
    else:
        names, update = measure_losses(recorder, losses)

    attributes = provenance("gradients.compare", model, seed=seed)
    return make_dataset([update], recorder, names, attributes).isel(step=0, drop=True)
