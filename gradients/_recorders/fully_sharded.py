"""What torch knows about a `fully_shard` model, and what we ask of one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from resonance_toolkit import is_dtensor, is_fully_sharded, is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def uses_fully_shard(model: nn.Module) -> bool:
    """Tell whether `fully_shard` was applied."""
    return any(is_fully_sharded(module) for module in model.modules())


def check_not_tensor_parallel(model: nn.Module) -> None:
    """Refuse a model whose parameters are DTensors, but not by `fully_shard`.

    Each process of a tensor-parallel model holds parts of gradients and of activations, and not
    always parts that may simply be added up.

    Raises:
        ValueError: If it is one.
    """
    if is_sharded(model) and not uses_fully_shard(model):
        raise ValueError(
            "`model`: expected whole parameters, or `fully_shard` over all of them; got DTensors "
            "without it (tensor parallel), where each process has only a part of the gradients"
        )


def find_sharding_group(parameters: Iterable[Tensor]) -> dist.ProcessGroup:
    """Find the processes over which `fully_shard` has split the parameters.

    Raises:
        ValueError: If it has not split all of them, along one dimension of one mesh.
    """
    meshes = set()

    for parameter in parameters:
        if not is_dtensor(parameter) or not _is_split_once(parameter):
            raise ValueError(
                "`model`: expected `fully_shard` over all parameters on one one-dimensional mesh, "
                f"got a parameter of shape {tuple(parameter.shape)} that is not sharded like that "
                "(between a forward and its backward pass no parameter is: make the trace before)"
            )
        meshes.add(parameter.device_mesh)

    if len(meshes) > 1:
        raise ValueError(f"`model`: expected one device mesh, got {len(meshes)}")
    return meshes.pop().get_group()


def parameter_groups(model: nn.Module) -> list[Any]:
    """List torch's own records of parameters that are gathered together."""
    states = [m._get_fsdp_state() for m in model.modules() if is_fully_sharded(m)]

    # One group per state in older torch, several in newer.
    groups_by_state = [
        getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] for state in states
    ]
    return [group for groups in groups_by_state for group in groups if group is not None]


def local_part(tensor: Tensor | None) -> Any:
    """Return what this process holds of a tensor; a tensor that is no DTensor as it is."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def _is_split_once(parameter: "DTensor") -> bool:
    return parameter.device_mesh.ndim == 1 and parameter.placements[0].is_shard()
