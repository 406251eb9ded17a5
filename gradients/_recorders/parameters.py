from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from gradients._recorders.graph import reached_leaves, undisturbed
from gradients._recorders.inner_products import HALF, added, inner_products
from gradients._recorders.layers import parameters_by_layer, same_places, sizes_of
from gradients._recorders.processes import mean_over, union_over
from gradients._recorders.protocol import Measurement

Row = list[Tensor | None]  # the gradients of one parameter, one per loss


class ParameterRecorder:
    """Reads the gradients of several losses with respect to the parameters.

    Every loss but the first is differentiated by itself, on the graph that the training step
    needs anyway; the first is what remains of the total, which hooks read on its way into
    `.grad`. Gradients are summed over the micro-batches of an update, and averaged over
    processes, before they are multiplied: a mean of cosines is not the cosine of the batch.
    """

    def __init__(self, model: nn.Module, separate: bool | None) -> None:
        self.model, self.separate = model, separate
        self.group: dist.ProcessGroup | None = None
        self.parameters, self.layers, self.owners = parameters_by_layer(model)
        self.sizes: list[int] | None = sizes_of(self.parameters, self.owners)
        self._handles: list[RemovableHandle] = []
        self._met = False
        self.reset()

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self.disarm()
        self._gradients: dict[int, Row] = {}
        self._products: dict[int, Tensor] = {}
        self._reached: NDArray[np.bool_] | None = None
        self._compiled = False

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Differentiate the single losses, and get ready to read the backward pass of their sum."""
        self.disarm()
        self.parameters = same_places(self.model, self.parameters, self.layers, self.owners)
        wanted = [i for i, p in enumerate(self.parameters) if p.requires_grad]
        half = any(self.parameters[i].dtype in HALF for i in wanted)
        separate = half if self.separate is None else self.separate
        reached = np.zeros((len(self.parameters), len(losses)), dtype=bool)
        leaves, compiled = reached_leaves(losses[0])
        reached[:, 0] = [id(p) in leaves for p in self.parameters]
        rows: dict[int, Row] = {i: [None] * len(losses) for i in wanted}
        with undisturbed(self.model):
            for column in range(0 if separate else 1, len(losses)):
                found = _gradient(losses[column], [self.parameters[i] for i in wanted], factor)
                for i, gradient in zip(wanted, found, strict=True):
                    rows[i][column] = gradient
                    reached[i, column] = gradient is not None
        self._check_met(reached, wanted)
        self._reached = reached if self._reached is None else self._reached | reached
        self._compiled |= compiled
        self._first_is_sum = not separate
        # Gradients multiplied on the spot need not be kept, unless more are to be added to them.
        at_once = whole_update and self.group is None and not self._gradients
        for i, row in rows.items():
            if reached[i].any():
                use = partial(self._multiply if at_once else self._keep, i, row)
                if separate:
                    use(row[0])
                else:
                    self._handles.append(_on_gradient(self.parameters[i], use))

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
            self._average(self.group)
        for i, row in self._gradients.items():
            self._multiply(i, row, row[0])
        device = self.parameters[0].device
        count = self._reached.shape[1]
        nothing = torch.zeros(count * (count + 1) // 2, dtype=torch.float64, device=device)
        products = [self._products.get(i, nothing).to(device) for i in range(len(self.parameters))]
        # What the backward pass of the total did not come by is unknown, not zero.
        self._reached[[i not in self._products for i in range(len(products))]] = False
        result = Measurement(torch.stack(products), self._reached, self._compiled)
        self.reset()
        return result

    def _check_met(self, reached: NDArray[np.bool_], wanted: list[int]) -> None:
        # Once is enough: a model may well sit out some later steps.
        self._met |= bool(reached.any())
        if wanted and not self._met:
            raise ValueError(
                "losses: none depends on a parameter of `model`; expected losses of this very "
                "model, not of a copy, and made with gradients enabled"
            )

    def _multiply(self, index: int, row: Row, first: Tensor | None) -> None:
        assert self._reached is not None
        row[0] = first if self._reached[index, 0] else None
        self._products[index] = inner_products(row, first_is_sum=self._first_is_sum)
        row.clear()  # so that each gradient goes as soon as it has been used

    def _keep(self, index: int, row: Row, first: Tensor | None) -> None:
        # A copy: what a hook is given may become `.grad` itself.
        row[0] = None if first is None else first.detach().clone()
        before = self._gradients.get(index)
        self._gradients[index] = row if before is None else list(map(added, before, row))

    def _average(self, group: dist.ProcessGroup) -> None:
        assert self._reached is not None
        self._reached = union_over(group, self._reached, self.parameters[0].device)
        count = self._reached.shape[1]
        indices = [int(i) for i in np.flatnonzero(self._reached.any(1))]
        own: list[Tensor] = []
        for i in indices:
            row = self._gradients.get(i, [None] * count)
            own += [torch.zeros_like(self.parameters[i]) if g is None else g for g in row]
        means = mean_over(group, own)
        self._gradients = {
            i: list(means[k * count : (k + 1) * count]) for k, i in enumerate(indices)
        }


def _gradient(loss: Tensor, inputs: list[Tensor], factor: Tensor) -> tuple[Tensor | None, ...]:
    if not loss.requires_grad:
        return (None,) * len(inputs)
    seed = factor.to(loss).reshape(loss.shape)
    return torch.autograd.grad(loss, inputs, seed, retain_graph=True, allow_unused=True)


def _on_gradient(parameter: Tensor, use: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `use` with what the next backward pass adds to `.grad`, before it is added."""
    # On the accumulator, not on the tensor: it comes after any hook of the user's there.
    accumulator = get_gradient_edge(parameter).node
    return accumulator.register_prehook(lambda gradients: use(gradients[0]))
