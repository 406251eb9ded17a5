"""Gradients with respect to the parameters of a `fully_shard` model."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradients._recorders.fully_sharded import find_sharding_group, local_part, parameter_groups
from gradients._recorders.graph import reached_leaves, restoring_buffers_and_rng
from gradients._recorders.inner_products import (
    HALF_PRECISION,
    add_optional,
    inner_products,
    zero_triangle,
)
from gradients._recorders.layers import parameters_by_layer
from gradients._recorders.protocol import Measurement


class ShardRecorder:
    """Reads gradients of a `fully_shard` model, where only `backward` computes any.

    Each auxiliary loss is backpropagated first, with every `.grad` set aside; then the caller
    backpropagates the sum, of which the first loss is what remains, or it is backpropagated by
    itself too. Each process multiplies its own shards, and the products are added up.
    """

    def __init__(self, model: nn.Module, separate: bool | None) -> None:
        self.model = model
        self.separate = separate

        by_layer = parameters_by_layer(model)
        self.parameters = by_layer.parameters
        self.layers = by_layer.layers
        self.owners = by_layer.owners
        self.sizes: list[int] | None = by_layer.count_by_layer()
        self.group: dist.ProcessGroup | None = find_sharding_group(self.parameters)

        self._user_gradients: list[Tensor | None] | None = None  # set aside during a pass
        self.reset()

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self._give_gradients_back(add=False)
        self._sums: list[list[Tensor | None]] = [[] for _ in self.parameters]

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Backpropagate the single losses, and set `.grad` aside for their sum."""
        del whole_update  # the products wait for the other processes in any case
        self._check_model()

        separate = self._needs_separate_passes() if self.separate is None else self.separate
        self._first_is_sum = not separate

        first_column = 0 if separate else 1
        columns = [self._backpropagate(loss, factor) for loss in losses[first_column:]]
        for sums, *gradients in zip(self._sums, *columns, strict=True):
            if not sums:
                sums += [None] * len(losses)
            for column, gradient in enumerate(gradients, start=first_column):
                sums[column] = add_optional(sums[column], gradient)

        # With separate passes nothing is to be read from the sum's own pass.
        if separate:
            return
        self._user_gradients = [p.grad for p in self.parameters]
        for p in self.parameters:
            p.grad = None

    def disarm(self) -> None:
        """Take what the backward pass of the sum left in `.grad`, and add it to what was there."""
        if self._user_gradients is not None:
            for sums, p in zip(self._sums, self.parameters, strict=True):
                # A copy: `.grad` stays the user's, to clip, to clear or to add to.
                gradient = None if p.grad is None else local_part(p.grad).clone()
                sums[0] = add_optional(sums[0], gradient)

        self._give_gradients_back(add=True)

    def measure(self) -> Measurement:
        """Finish the update."""
        n_losses = max(len(sums) for sums in self._sums)
        products = torch.stack(
            [
                inner_products(sums, first_is_sum=self._first_is_sum)
                if any(gradient is not None for gradient in sums)
                else zero_triangle(n_losses, local_part(p).device)
                for sums, p in zip(self._sums, self.parameters, strict=True)
            ]
        )
        # Shards are disjoint parts of one gradient: their inner products add up to the whole's.
        dist.all_reduce(products, group=self.group)

        reached = np.array([[gradient is not None for gradient in sums] for sums in self._sums])
        self.reset()
        return Measurement(products, reached, zero_is_unreached=True)

    def close(self) -> None:
        """Nothing stays on the model between backward passes."""
        self.reset()

    def _check_model(self) -> None:
        if not all(group.reduce_grads for group in parameter_groups(self.model)):
            raise ValueError(
                "`model`: gradients that wait unsharded for a later micro-batch "
                "(`set_requires_gradient_sync(False)`) cannot be told apart by loss; leave the "
                "synchronisation on where the trace samples"
            )

        n_parameters = len(list(self.model.parameters()))
        if n_parameters != len(self.parameters):
            raise ValueError(
                f"`model`: expected the {len(self.parameters)} parameters that it had when the "
                f"trace was made, got {n_parameters}; make a new trace"
            )

    def _needs_separate_passes(self) -> bool:
        # Parameters may be in full precision and be cast for the forward pass: both count.
        dtypes = {p.dtype for p in self.parameters if p.requires_grad}
        for group in parameter_groups(self.model):
            dtypes |= {sharded.param_dtype for sharded in group.fsdp_params}
        return not dtypes.isdisjoint(HALF_PRECISION)

    def _backpropagate(self, loss: Tensor, factor: Tensor) -> list[Tensor | None]:
        if not loss.requires_grad:
            return [None] * len(self.parameters)

        # `backward` would also add to branches beside the model, a second time.
        leaves = {id(p): p for p in self.parameters} | reached_leaves(loss)[0]
        user_gradients = {leaf: leaf.grad for leaf in leaves.values()}

        try:
            for leaf in user_gradients:
                leaf.grad = None
            with restoring_buffers_and_rng(self.model):
                loss.backward(factor.to(loss).reshape(loss.shape), retain_graph=True)
            return [local_part(p.grad) for p in self.parameters]
        finally:
            for leaf, gradient in user_gradients.items():
                leaf.grad = gradient

    def _give_gradients_back(self, *, add: bool) -> None:
        if self._user_gradients is None:
            return

        for p, earlier in zip(self.parameters, self._user_gradients, strict=True):
            if earlier is not None:
                if add and p.grad is not None:
                    earlier += p.grad  # in place, as `backward` would have added
                p.grad = earlier
        self._user_gradients = None
