"""Gradients with respect to parameters that are whole in every process."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from gradients._recorders.graph import reached_leaves, restoring_buffers_and_rng
from gradients._recorders.inner_products import (
    HALF_PRECISION,
    add_optional,
    inner_products,
    zero_triangle,
)
from gradients._recorders.layers import current_parameters, parameters_by_layer
from gradients._recorders.processes import mean_over, union_over
from gradients._recorders.protocol import Measurement

LossGradients = list[Tensor | None]  # the gradients of one parameter, one per loss


class ParameterRecorder:
    """Reads the gradients of several losses with respect to the parameters.

    Every loss but the first is differentiated by itself, on the graph that the training step
    needs anyway; the first is what remains of the total, which hooks read on its way into
    `.grad`. Gradients are summed over the micro-batches of an update, and averaged over
    processes, before they are multiplied: a mean of cosines is not the cosine of the batch.

    With `noise`, the gradients of each micro-batch are multiplied by themselves, too.
    """

    def __init__(self, model: nn.Module, separate: bool | None, *, noise: bool = False) -> None:
        self.model = model
        self.separate = separate
        self.noise = noise
        self.group: dist.ProcessGroup | None = None

        self._by_layer = parameters_by_layer(model)
        self.layers = self._by_layer.layers
        self.owners = self._by_layer.owners
        self.sizes: list[int] | None = self._by_layer.count_by_layer()

        self._handles: list[RemovableHandle] = []
        self._has_met_model = False
        self.reset()

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self.disarm()
        self._gradients: dict[int, LossGradients] = {}
        self._products: dict[int, Tensor] = {}
        self._micro_products: dict[int, Tensor] = {}
        self._n_passes = 0
        self._reached: NDArray[np.bool_] | None = None
        self._has_compiled_part = False

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Differentiate the single losses, and get ready to read the backward pass of their sum."""
        self.disarm()
        self._n_passes += 1
        self._by_layer = current_parameters(self.model, self._by_layer)
        parameters = self._by_layer.parameters

        trainable = [i for i, p in enumerate(parameters) if p.requires_grad]
        separate = self.separate
        if separate is None:
            separate = any(parameters[i].dtype in HALF_PRECISION for i in trainable)

        reached = np.zeros((len(parameters), len(losses)), dtype=bool)
        leaves, has_compiled_part = reached_leaves(losses[0])
        reached[:, 0] = [id(p) in leaves for p in parameters]

        # The first loss has no pass of its own, unless it is asked for: it is what remains when
        # the gradients of the others are taken away from that of the sum.
        first_column = 0 if separate else 1
        gradients: dict[int, LossGradients] = {i: [None] * len(losses) for i in trainable}
        with restoring_buffers_and_rng(self.model):
            for column in range(first_column, len(losses)):
                column_gradients = _differentiate(
                    losses[column], [parameters[i] for i in trainable], factor
                )
                for i, gradient in zip(trainable, column_gradients, strict=True):
                    gradients[i][column] = gradient
                    reached[i, column] = gradient is not None

        self._check_dependence(reached, trainable)
        self._reached = reached if self._reached is None else self._reached | reached
        self._has_compiled_part |= has_compiled_part
        self._first_is_sum = not separate

        # Gradients multiplied on the spot need not be kept, unless more are to be added to them.
        at_once = whole_update and self.group is None and not self._gradients
        for i, loss_gradients in gradients.items():
            if not reached[i].any():
                continue

            use_first = partial(self._multiply if at_once else self._keep, i, loss_gradients)
            if separate:
                use_first(loss_gradients[0])
            else:
                self._handles.append(_on_gradient(parameters[i], use_first))

    def disarm(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def close(self) -> None:
        """Nothing stays on the model between backward passes."""
        self.reset()

    def measure(self) -> Measurement:
        """Finish the update."""
        self.disarm()
        assert self._reached is not None
        if self.group is not None:
            self._average_over(self.group)

        for i, loss_gradients in self._gradients.items():
            self._multiply(i, loss_gradients, loss_gradients[0])

        parameters = self._by_layer.parameters
        device = parameters[0].device
        nothing = zero_triangle(self._reached.shape[1], device)
        indices = range(len(parameters))
        products = torch.stack([self._products.get(i, nothing).to(device) for i in indices])

        # What the backward pass of the total did not come by is unknown, not zero.
        self._reached[[i not in self._products for i in indices]] = False

        # A compiled graph gives zeros to parameters that a loss does not reach.
        measurement = Measurement(
            products, self._reached, zero_is_unreached=self._has_compiled_part
        )
        if self.noise:
            self._add_micro_batches(measurement)
        self.reset()
        return measurement

    def _check_dependence(self, reached: NDArray[np.bool_], trainable: list[int]) -> None:
        # Once is enough: a model may well sit out some later steps.
        self._has_met_model |= bool(reached.any())

        if trainable and not self._has_met_model:
            raise ValueError(
                "losses: none depends on a parameter of `model`; expected losses of this very "
                "model, not of a copy, and made with gradients enabled"
            )

    def _multiply(self, index: int, loss_gradients: LossGradients, first: Tensor | None) -> None:
        assert self._reached is not None
        loss_gradients[0] = first if self._reached[index, 0] else None
        self._products[index] = inner_products(loss_gradients, first_is_sum=self._first_is_sum)
        loss_gradients.clear()  # so that each gradient goes as soon as it has been used

    def _keep(self, index: int, loss_gradients: LossGradients, first: Tensor | None) -> None:
        # A copy: what a hook is given may become `.grad` itself.
        loss_gradients[0] = None if first is None else first.detach().clone()

        if self.noise:
            self._multiply_micro_batch(index, loss_gradients)

        earlier = self._gradients.get(index)
        if earlier is not None:
            loss_gradients = list(map(add_optional, earlier, loss_gradients))
        self._gradients[index] = loss_gradients

    def _multiply_micro_batch(self, index: int, loss_gradients: LossGradients) -> None:
        assert self._reached is not None
        first = loss_gradients[0] if self._reached[index, 0] else None
        vectors = [first, *loss_gradients[1:]]
        if all(vector is None for vector in vectors):
            return

        products = inner_products(vectors, first_is_sum=self._first_is_sum)
        earlier = self._micro_products.get(index)
        self._micro_products[index] = products if earlier is None else earlier + products

    def _add_micro_batches(self, measurement: Measurement) -> None:
        # The update is its only micro-batch.
        if self.group is None and self._n_passes == 1:
            measurement.micro_products = measurement.products
            return

        nothing = torch.zeros_like(measurement.products[0])
        indices = range(len(measurement.products))
        products = torch.stack([self._micro_products.get(i, nothing).to(nothing) for i in indices])
        measurement.n_micro_batches = self._n_passes

        # The gradient is a mean over processes: each brings its share of it.
        if self.group is not None:
            n_processes = dist.get_world_size(self.group)
            dist.all_reduce(products, group=self.group)
            products /= n_processes**2
            measurement.n_micro_batches *= n_processes
        measurement.micro_products = products

    def _average_over(self, group: dist.ProcessGroup) -> None:
        assert self._reached is not None
        parameters = self._by_layer.parameters
        self._reached = union_over(group, self._reached, parameters[0].device)

        n_losses = self._reached.shape[1]
        indices = [int(i) for i in np.flatnonzero(self._reached.any(1))]

        # Every process must send as much, so that missing gradients go as zeros.
        message: list[Tensor] = []
        for i in indices:
            message += [
                torch.zeros_like(parameters[i]) if gradient is None else gradient
                for gradient in self._gradients.get(i, [None] * n_losses)
            ]

        means = mean_over(group, message)
        self._gradients = {
            i: list(means[k * n_losses : (k + 1) * n_losses]) for k, i in enumerate(indices)
        }


def _differentiate(loss: Tensor, inputs: list[Tensor], factor: Tensor) -> tuple[Tensor | None, ...]:
    if not loss.requires_grad:
        return (None,) * len(inputs)

    seed = factor.to(loss).reshape(loss.shape)
    return torch.autograd.grad(loss, inputs, seed, retain_graph=True, allow_unused=True)


def _on_gradient(parameter: Tensor, use: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `use` with what the next backward pass adds to `.grad`, before it is added."""
    # On the accumulator, not on the tensor: it comes after any hook of the user's there.
    accumulator = get_gradient_edge(parameter).node
    return accumulator.register_prehook(lambda gradients: use(gradients[0]))
