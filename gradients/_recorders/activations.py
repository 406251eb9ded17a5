"""Gradients with respect to the outputs of layers."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from gradients._recorders.graph import Step, walk
from gradients._recorders.inner_products import add_optional, inner_products, zero_triangle
from gradients._recorders.protocol import Measurement
from gradients._recorders.unreadable import UnreadableUpdateError
from resonance_toolkit import find_layers, unwrap

Edge = tuple[Any, int]  # an autograd node, and the number of its output


class ActivationRecorder:
    """Reads, at the outputs of layers, what one ordinary backward pass brings there.

    What comes through a layer's own branches is the auxiliary gradient; all else that arrives,
    from the layers above, is the main one. Hooks on the layers note where in the autograd graph
    their outputs are, from the start of a forward pass of the model to its backward pass.

    Args:
        model: Hooks go to the model inside its wrappers.
        patterns: Names or patterns of layers.
        is_sampled: Tells, when a forward pass begins, whether it is to be listened to.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: str | Sequence[str],
        is_sampled: Callable[[], bool],
    ) -> None:
        modules = find_layers(model, patterns)
        self.layers = list(modules)
        self.owners = list(range(len(modules)))
        self.sizes: list[int] | None = None
        self.group: dist.ProcessGroup | None = None

        self.is_sampled = is_sampled
        self.hooks = ExitStack()
        self._handles = ExitStack()
        self._is_listening = False
        self._edges: list[tuple[int, GradientEdge]] = []
        self.reset()

        root = unwrap(model)
        begin = _Hook(self, root, None)
        self.hooks.enter_context(root.register_forward_pre_hook(begin))
        for index, module in enumerate(modules.values()):
            hook = _Hook(self, module, index)
            self.hooks.enter_context(module.register_forward_hook(hook))

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps what was recorded, but hears nothing: the hooks are this one's.
        deaf = {
            "is_sampled": _is_never_sampled,
            "hooks": ExitStack(),
            "_handles": ExitStack(),
            "_edges": [],
        }
        return vars(self) | deaf

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self.disarm()
        self._edges.clear()
        self._products: dict[int, Tensor] = {}
        self._reached: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    def hear(self, index: int | None, output: Any) -> None:
        """Note the output of a layer; None stands for the beginning of the model's forward."""
        if index is None:
            self._is_listening = torch.is_grad_enabled() and self.is_sampled()
        elif self._is_listening:
            tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
            # The place in the graph, not the tensor: an in-place operation may follow on that.
            self._edges += [(index, get_gradient_edge(t)) for t in tensors[:1]]

    def pause(self) -> None:
        """Stop listening: checkpointing will run layers again during the backward pass."""
        self._is_listening = False

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Find the branches in the graph, and get ready to read the backward pass."""
        del factor, whole_update  # samples are apart in features: their products just add up
        self.pause()
        self._handles.close()

        layers = {(edge.node, edge.output_nr): index for index, edge in self._edges}
        graph_holders = [edge for _, edge in self._edges]  # they keep it alive for the hooks
        self._edges.clear()

        main_steps = list(walk(losses[0]))
        main_nodes = {step.node for step in main_steps}
        attached_edges = {step.target for step in main_steps} & layers.keys()
        self._check_all_heard({layers[edge] for edge in attached_edges})

        reached = np.zeros((len(self.layers), len(losses)), dtype=bool)
        arrived: dict[Edge, list[Tensor | None]] = {
            edge: [None] * len(losses) for edge in attached_edges
        }
        for edge in attached_edges:
            reached[layers[edge], 0] = True

        # Autograd runs a node when all gradients for it have come: by the time that one arrives at
        # a layer, its branches have sent theirs.
        for column, loss in enumerate(losses[1:], start=1):
            for step in walk(loss, stops=attached_edges):
                if step.target in attached_edges:
                    index = layers[step.target]
                    self._check_separable(step, main_nodes, self.layers[index])
                    reached[index, column] = True
                    self._handles.enter_context(_on_branch(step, arrived[step.target], column))

        for edge in attached_edges:
            self._handles.enter_context(self._on_arrival(edge, layers[edge], arrived[edge]))
        self._handles.callback(graph_holders.clear)
        self._reached = reached if self._reached is None else self._reached | reached

    def disarm(self) -> None:
        """Take the hooks of one backward pass away."""
        self._handles.close()

    def measure(self) -> Measurement:
        """Finish the update."""
        self.disarm()
        assert self._reached is not None

        nothing = zero_triangle(self._reached.shape[1], torch.device("cpu"))
        template = next(iter(self._products.values()), nothing)
        products = torch.stack([self._products.get(i, nothing).to(template) for i in self.owners])

        if self.group is not None:
            # The loss of the whole batch is a mean over processes, and so are its gradients.
            dist.all_reduce(products, group=self.group)
            products /= dist.get_world_size(self.group) ** 2

        measurement = Measurement(products, self._reached, zero_is_unreached=False)
        self.reset()
        return measurement

    def close(self) -> None:
        """Take all hooks away."""
        self.reset()
        self.hooks.close()

    def _on_arrival(self, edge: Edge, index: int, arrived: list[Tensor | None]) -> Any:
        node, output_number = edge

        def multiply(gradients: tuple[Tensor | None, ...]) -> None:
            arrived[0] = gradients[output_number]
            if arrived[0] is None:
                return

            products = inner_products(arrived, first_is_sum=True)
            earlier = self._products.get(index)
            self._products[index] = products if earlier is None else earlier + products

        return node.register_prehook(multiply)

    def _check_all_heard(self, indices: set[int]) -> None:
        silent_layers = [name for index, name in enumerate(self.layers) if index not in indices]
        if silent_layers:
            raise UnreadableUpdateError(
                "`layers`: no gradient of the main loss was seen at "
                f"{', '.join(silent_layers)} in this forward pass. Did the layer run? A trace sees "
                "nothing after `close`, nor does a copy of it. Inside a compiled model layers are "
                "invisible: use level='parameter', or torch.compiler.set_stance('force_eager')"
            )

    def _check_separable(self, step: Step, main_nodes: set[Any], layer: str) -> None:
        if step.node in main_nodes:
            raise UnreadableUpdateError(
                f"`layers`: above {layer!r} the losses share a computation "
                f"({type(step.node).__name__}), so that their gradients arrive there as one; "
                "name the last layer that they share"
            )


class _Hook:
    """Tells a recorder what its module does; does nothing in a copy of that module."""

    def __init__(self, recorder: Any, module: nn.Module | None, index: int | None) -> None:
        self.recorder: Any = weakref.ref(recorder) if recorder is not None else None
        self.module: Any = weakref.ref(module) if module is not None else None
        self.index = index

    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        if torch.compiler.is_compiling() or self.recorder is None:
            return

        recorder = self.recorder()
        if recorder is not None and self.module() is module:
            recorder.hear(self.index, output)

    def __reduce__(self) -> Any:
        return _Hook, (None, None, None)


def _is_never_sampled() -> bool:
    return False


def _on_branch(step: Step, arrived: list[Tensor | None], column: int) -> Any:
    def add(sent: tuple[Tensor | None, ...], received: tuple[Tensor | None, ...]) -> None:
        arrived[column] = add_optional(arrived[column], sent[step.position])

    return step.node.register_hook(add)
