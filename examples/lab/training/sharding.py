"""Weights spread over processes by `fully_shard`: gathered for a file, and spread again.

Without sharding both directions leave everything as it is, so that a run may be saved by one
process and go on in several, sharded or not.
"""

from typing import Any

import torch.distributed as dist
from accelerate import Accelerator, DistributedType
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map


def prepare(
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, beside: list[nn.Parameter]
) -> tuple[nn.Module, Optimizer]:
    """What `Accelerator.prepare` makes of both.

    Args:
        accelerator: Says how to distribute.
        model: The backbone.
        optimizer: Of the backbone's parameters.
        beside: Parameters that it is to train, too, but that are not the backbone's: sharding
            takes none but the model's own, so they come in afterwards.

    Raises:
        ValueError: For the first version of FSDP, whose flat parameters hide the layers; and for a
            precision that Accelerate would leave out in silence, as it does fp16 on processors.
    """
    if accelerator.mixed_precision != "no" and not accelerator.native_amp:
        raise ValueError(
            f"--mixed_precision: expected bf16 or no on {accelerator.device.type}, got "
            f"{accelerator.mixed_precision}"
        )
    if accelerator.distributed_type is DistributedType.FSDP:
        if not accelerator.is_fsdp2:
            raise ValueError("FSDP: expected `accelerate launch --fsdp_version 2`, got version 1")
        # Every process has made the weights, by seed. Accelerate 1.15 would send the first one's,
        # and fail at parameters of the model itself, such as a class token.
        accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False
    model, optimizer = accelerator.prepare(model, optimizer)
    if beside:
        optimizer.add_param_group({"params": beside})
    return model, optimizer


def share_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers, such as the running means of batch norms."""
    if dist.is_available() and dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def gathered(state: Any) -> Any:
    """A state with every tensor whole; all processes have to ask, in the same order."""
    return tree_map(lambda v: v.full_tensor() if isinstance(v, DTensor) else v, state)


def load(model: nn.Module, optimizer: Any, weights: dict[str, Any], moments: Any) -> None:
    """Load gathered states of model and optimizer, each process its own part."""
    mine = model.state_dict()
    model.load_state_dict({name: _part(value, mine[name]) for name, value in weights.items()})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {name: _part(value, parameters[index]) for name, value in moment.items()}
        for index, moment in moments["state"].items()
    }
    optimizer.load_state_dict(moments | {"state": state})


def _part(value: Any, like: Any) -> Any:
    if not isinstance(like, DTensor) or getattr(value, "shape", None) != like.shape:
        return value  # not sharded; or a count of steps
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
