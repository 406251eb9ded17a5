import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradients._checks import check_group


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
            found: dist.ProcessGroup = module.process_group
            return found if dist.get_world_size(found) > 1 else None
    raise ValueError(
        f"`model`: {dist.get_world_size()} processes run, and a cosine of one process's share of "
        "the batch means little; expected the DistributedDataParallel or fully_shard model, got "
        f"{type(model).__name__}. Pass `group=` to average over a process group, or `group=None` "
        "if each process trains a model of its own"
    )


def mean_over(group: dist.ProcessGroup, tensors: list[Tensor]) -> list[Tensor]:
    """Average tensors over the processes, in one message."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def union_over(
    group: dist.ProcessGroup, flags: NDArray[np.bool_], device: torch.device
) -> NDArray[np.bool_]:
    """Tell where the flag is set in any process."""
    found = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    result: NDArray[np.bool_] = found.cpu().numpy().astype(bool)
    return result
