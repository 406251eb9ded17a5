"""The recorder that fits a level and a model."""

from collections.abc import Callable, Sequence

from torch import nn

from gradients._recorders.activations import ActivationRecorder
from gradients._recorders.fully_sharded import (
    check_not_tensor_parallel,
    find_sharding_group,
    uses_fully_shard,
)
from gradients._recorders.layers import parameters_by_layer
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.protocol import Recorder
from gradients._recorders.shards import ShardRecorder


def choose_recorder(
    model: nn.Module,
    layers: str | Sequence[str] | None,
    separate: bool | None,
    is_sampled: Callable[[], bool],
    *,
    noise: bool = False,
) -> Recorder:
    """Make the recorder for activations, if there are `layers`, or for parameters.

    Raises:
        ValueError: If the parameters are spread over processes in another way than `fully_shard`'s,
            or `noise` is asked for where micro-batches are not told apart.
    """
    check_not_tensor_parallel(model)

    if noise and (layers is not None or uses_fully_shard(model)):
        place = "level='activation'" if layers is not None else "a `fully_shard` model"
        raise ValueError(
            f"`noise`: expected False with {place}, where the gradients of single micro-batches "
            "are not available, got True; use level='parameter' and whole parameters"
        )

    if layers is None and uses_fully_shard(model):
        return ShardRecorder(model, separate)
    if layers is None:
        return ParameterRecorder(model, separate, noise=noise)

    # First the group, which may be refused: the recorder puts hooks on the model.
    group = None
    if uses_fully_shard(model):
        group = find_sharding_group(parameters_by_layer(model).parameters)

    recorder = ActivationRecorder(model, layers, is_sampled)
    recorder.group = group
    return recorder
