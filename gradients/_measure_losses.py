"""The gradients of several losses, compared once: what `compare` and `noise` share."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradients._checks import check_losses, check_names
from gradients._recorders.inner_products import stack_losses
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import mean_over
from gradients._rows import MeasuredUpdate, RecordedUpdate, to_recorded_updates

Losses: TypeAlias = Mapping[str, Tensor] | Sequence[Tensor]


def measure_losses(
    recorder: ParameterRecorder, losses: Losses
) -> tuple[tuple[str, ...], RecordedUpdate]:
    """Differentiate each loss by itself, and return their names and what was found.

    Raises:
        TypeError: If the losses are neither a mapping nor a sequence.
        ValueError: If they are not scalars, or their names do not differ.
    """
    names: tuple[str, ...] | None = None
    if isinstance(losses, Mapping):
        names = check_names(list(losses))
        scalars = list(losses.values())
    elif isinstance(losses, Sequence) and not isinstance(losses, Tensor):
        scalars = list(losses)
    else:
        kind = type(losses).__name__
        raise TypeError(f"`losses`: expected scalars by name or in order, got {kind}")
    names = check_losses(scalars, names)

    recorder.arm(scalars, torch.ones_like(scalars[0].detach()), whole_update=True)
    measurement = recorder.measure()

    values = stack_losses(scalars)
    if recorder.group is not None:
        (values,) = mean_over(recorder.group, [values])

    scale = torch.ones_like(values[0])
    update = MeasuredUpdate(0, values, scale, measurement)
    (recorded_update,) = to_recorded_updates([update], recorder.owners, len(recorder.layers))
    return names, recorded_update
