from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from gradients._recorders.graph import reached_leaves, undisturbed
from gradients._recorders.inner_products import HALF, added, inner_products
from gradients._recorders.layers import parameters_by_layer, sizes_of
from gradients._recorders.protocol import Measurement


class ShardRecorder:
    """Reads gradients of a `fully_shard` model, where only `backward` computes any.

    Each auxiliary loss is backpropagated first, with every `.grad` set aside; then the caller
    backpropagates the sum, of which the first loss is what remains, or it is backpropagated by
    itself too. Each process multiplies its own shards, and the products are added up.
    """

    def __init__(self, model: nn.Module, separate: bool | None) -> None:
        self.model, self.separate = model, separate
        self.parameters, self.layers, self.owners = parameters_by_layer(model)
        self.sizes: list[int] | None = sizes_of(self.parameters, self.owners)
        self.group: dist.ProcessGroup | None = _common_group(self.parameters)
        self._aside: list[Tensor | None] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self._give_back(add=False)
        self._sums: list[list[Tensor | None]] = [[] for _ in self.parameters]

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Backpropagate the single losses, and set `.grad` aside for their sum."""
        del whole_update  # the products wait for the other processes in any case
        groups = _shard_groups(self.model)
        if not all(group.reduce_grads for group in groups):
            raise ValueError(
                "`model`: gradients that wait unsharded for a later micro-batch "
                "(`set_requires_gradient_sync(False)`) cannot be told apart by loss; leave the "
                "synchronisation on where the trace samples"
            )
        if len(list(self.model.parameters())) != len(self.parameters):
            raise ValueError(
                f"`model`: expected the {len(self.parameters)} parameters that it had when the "
                f"trace was made, got {len(list(self.model.parameters()))}; make a new trace"
            )
        dtypes = {p.dtype for p in self.parameters if p.requires_grad}
        dtypes |= {p.param_dtype for group in groups for p in group.fsdp_params}
        separate = not dtypes.isdisjoint(HALF) if self.separate is None else self.separate
        self._first_is_sum = not separate
        first = 0 if separate else 1
        columns = [self._gradient(loss, factor) for loss in losses[first:]]
        for sums, *found in zip(self._sums, *columns, strict=True):
            if not sums:
                sums += [None] * len(losses)
            for column, gradient in enumerate(found, start=first):
                sums[column] = added(sums[column], gradient)
        if separate:
            return  # nothing is to be read from the sum's own pass
        self._aside = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None

    def disarm(self) -> None:
        """Take what the backward pass of the sum left in `.grad`, and add it to what was there."""
        if self._aside is not None:
            for sums, p in zip(self._sums, self.parameters, strict=True):
                # A copy: `.grad` stays the user's, to clip, to clear or to add to.
                new = None if p.grad is None else _local(p.grad).clone()
                sums[0] = added(sums[0], new)
        self._give_back(add=True)

    def measure(self) -> Measurement:
        """Finish the update."""
        count = max(len(sums) for sums in self._sums)
        products = torch.stack(
            [
                inner_products(sums, first_is_sum=self._first_is_sum)
                if any(gradient is not None for gradient in sums)
                else torch.zeros(count * (count + 1) // 2).double().to(_local(p).device)
                for sums, p in zip(self._sums, self.parameters, strict=True)
            ]
        )
        dist.all_reduce(products, group=self.group)
        reached = np.array([[gradient is not None for gradient in sums] for sums in self._sums])
        self.reset()
        return Measurement(products, reached, zero_is_unreached=True)

    def close(self) -> None:
        """Nothing stays on the model between backward passes."""
        self.reset()

    def _gradient(self, loss: Tensor, factor: Tensor) -> list[Tensor | None]:
        if not loss.requires_grad:
            return [None] * len(self.parameters)
        # `backward` would also add to branches beside the model, a second time.
        leaves = {id(p): p for p in self.parameters} | reached_leaves(loss)[0]
        grads = {leaf: leaf.grad for leaf in leaves.values()}
        try:
            for leaf in grads:
                leaf.grad = None
            with undisturbed(self.model):
                loss.backward(factor.to(loss).reshape(loss.shape), retain_graph=True)
            return [_local(p.grad) for p in self.parameters]
        finally:
            for leaf, grad in grads.items():
                leaf.grad = grad

    def _give_back(self, *, add: bool) -> None:
        if self._aside is None:
            return
        for p, before in zip(self.parameters, self._aside, strict=True):
            if before is not None:
                if add and p.grad is not None:
                    before += p.grad  # in place, as `backward` would have added
                p.grad = before
        self._aside = None


def is_sharded(model: nn.Module) -> bool:
    """Tell whether `fully_shard` was applied."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def _common_group(parameters: list[Tensor]) -> dist.ProcessGroup:
    for p in parameters:
        if not isinstance(p, DTensor) or p.device_mesh.ndim > 1 or not _is_split(p):
            raise ValueError(
                "`model`: expected `fully_shard` over all parameters on one one-dimensional mesh, "
                f"got a parameter of shape {tuple(p.shape)} that is not sharded so. (Between a "
                "forward and its backward pass none is: make the trace before)"
            )
    meshes = {p.device_mesh for p in parameters if isinstance(p, DTensor)}
    if len(meshes) > 1:
        raise ValueError(f"`model`: expected one device mesh, got {len(meshes)}")
    return meshes.pop().get_group()


def _is_split(p: DTensor) -> bool:
    return isinstance(p.placements[0], Shard)


def _shard_groups(model: nn.Module) -> list[Any]:
    states = [m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule)]
    # One group per state in older torch, several in newer.
    groups = [getattr(s, "_fsdp_param_groups", None) or [s._fsdp_param_group] for s in states]
    return [group for some in groups for group in some if group is not None]


def _local(tensor: Tensor | None) -> Any:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
