from collections.abc import Callable, Sequence

from torch import nn

from gradients._recorders.activations import FeatureRecorder
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import find_group
from gradients._recorders.protocol import Recorder
from gradients._recorders.shards import ShardRecorder, is_sharded


def make_recorder(
    model: nn.Module,
    layers: str | Sequence[str] | None,
    separate: bool | None,
    sampled: Callable[[], bool],
) -> Recorder:
    """Pick the recipe that fits the level (activations, if there are `layers`) and the model."""
    if layers is not None:
        recorder = FeatureRecorder(model, layers, sampled)
        if is_sharded(model):
            recorder.group = ShardRecorder(model, separate).group
        return recorder
    if is_sharded(model):
        return ShardRecorder(model, separate)
    return ParameterRecorder(model, separate)


def settle_group(recorder: Recorder, model: nn.Module, group: object) -> None:
    """Find the processes that share the batch, unless they are known.

    Raises:
        ValueError: If the model was sharded after its recorder was made.
    """
    if recorder.group is None:
        if is_sharded(model):
            raise ValueError("`model`: sharded since; expected `fully_shard` before the trace")
        recorder.group = find_group(model, group)
