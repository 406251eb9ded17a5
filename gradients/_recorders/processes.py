"""Which processes share a batch, and what they exchange."""

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradients._checks import check_group
from gradients._recorders.fully_sharded import uses_fully_shard
from gradients._recorders.protocol import Recorder


def find_group(model: nn.Module, group: object) -> dist.ProcessGroup | None:
    """Settle over which processes gradients are averaged; None for this process alone.

    Raises:
        ValueError: If several processes run and nothing says whether they share the model.
    """
    check_group(group)
    if group is None or isinstance(group, dist.ProcessGroup):
        return group

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None

    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            wrapper_group: dist.ProcessGroup = module.process_group
            return wrapper_group if dist.get_world_size(wrapper_group) > 1 else None

    raise ValueError(
        f"`model`: {dist.get_world_size()} processes run, and a cosine of one process's share of "
        "the batch means little; expected the DistributedDataParallel or fully_shard model, got "
        f"{type(model).__name__}. Pass `group=` to average over a process group, or `group=None` "
        "if each process trains a model of its own"
    )


def settle_group(recorder: Recorder, model: nn.Module, group: object) -> None:
    """Tell a recorder the processes that share the batch, unless it knows them.

    Raises:
        ValueError: If the model was sharded after its recorder was made.
    """
    if recorder.group is not None:
        return

    if uses_fully_shard(model):
        raise ValueError("`model`: expected `fully_shard` before the trace is made, not after it")
    recorder.group = find_group(model, group)


def mean_over(group: dist.ProcessGroup, tensors: list[Tensor]) -> list[Tensor]:
    """Average tensors over the processes, in one message."""
    message = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(message, group=group)
    message /= dist.get_world_size(group)

    pieces = message.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def union_over(
    group: dist.ProcessGroup, flags: NDArray[np.bool_], device: torch.device
) -> NDArray[np.bool_]:
    """Tell where the flag is set in any process."""
    message = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(message, op=dist.ReduceOp.MAX, group=group)

    union: NDArray[np.bool_] = message.cpu().numpy().astype(bool)
    return union
