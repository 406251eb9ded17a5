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
    accelerator: Accelerator, model: nn.Module, optimizer: Optimizer, branches: list[nn.Parameter]
) -> tuple[nn.Module, Optimizer]:
    """Distribute model and optimizer by `Accelerator.prepare`.

    Args:
        accelerator: Says how to distribute.
        model: The backbone.
        optimizer: Of the backbone's parameters.
        branches: Parameters that it is to train, too, but that are not the backbone's: sharding
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
    if branches:
        optimizer.add_param_group({"params": branches})
    return model, optimizer


def share_buffers(model: nn.Module) -> None:
    """Give every process the first one's buffers, such as the running means of batch norms."""
    if dist.is_available() and dist.is_initialized():
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def gather_shards(state: Any) -> Any:
    """Return a state with every tensor whole; all processes have to ask, in the same order."""
    return tree_map(
        lambda value: value.full_tensor() if isinstance(value, DTensor) else value, state
    )


def load_shards(model: nn.Module, optimizer: Any, weights: dict[str, Any], moments: Any) -> None:
    """Load gathered states of model and optimizer, each process its own part.

    Args:
        model: The backbone, sharded or not.
        optimizer: Of its parameters, and of others beside them.
        weights: The model's gathered state.
        moments: The optimizer's gathered state.
    """
    own_weights = model.state_dict()
    model.load_state_dict(
        {name: _shard_like(own_weights[name], value) for name, value in weights.items()}
    )

    # The state of an optimizer knows its parameters by their number.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {name: _shard_like(parameters[index], value) for name, value in moment.items()}
        for index, moment in moments["state"].items()
    }
    optimizer.load_state_dict(moments | {"state": state})


def _shard_like(template: Any, value: Any) -> Any:
    # A moment has the shape of its parameter; a count of steps has not, and is the same for all.
    if not isinstance(template, DTensor) or getattr(value, "shape", None) != template.shape:
        return value
    return distribute_tensor(value, template.device_mesh, template.placements, src_data_rank=None)
