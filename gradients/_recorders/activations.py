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
from gradients._recorders.inner_products import added, inner_products
from gradients._recorders.protocol import Measurement
from resonance_toolkit import find_layers, unwrap

Edge = tuple[Any, int]  # an autograd node, and the number of its output


class FeatureRecorder:
    """Reads, at the outputs of layers, what one ordinary backward pass brings there.

    What comes through a layer's own branches is the auxiliary gradient; all else that arrives,
    from the layers above, is the main one. Hooks on the layers note where in the autograd graph
    their outputs are, from the start of a forward pass of the model to its backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        patterns: str | Sequence[str],
        sampled: Callable[[], bool],
    ) -> None:
        modules = find_layers(model, patterns)
        self.layers, self.owners = list(modules), list(range(len(modules)))
        self.sizes: list[int] | None = None
        self.group: dist.ProcessGroup | None = None
        self.sampled = sampled
        self._listening = False
        self._handles, self.hooks = ExitStack(), ExitStack()
        self._edges: list[tuple[int, GradientEdge]] = []
        self.reset()
        start = _Hook(self, unwrap(model), None)
        self.hooks.enter_context(unwrap(model).register_forward_pre_hook(start))
        for index, module in enumerate(modules.values()):
            hook = _Hook(self, module, index)
            self.hooks.enter_context(module.register_forward_hook(hook))

    def __getstate__(self) -> dict[str, Any]:
        # A copy keeps what was recorded, but hears nothing: the hooks are this one's.
        closed = {"sampled": bool, "hooks": ExitStack(), "_handles": ExitStack(), "_edges": []}
        return vars(self) | closed

    def reset(self) -> None:
        """Forget an update that was not finished."""
        self.disarm()
        self._edges.clear()
        self._products: dict[int, Tensor] = {}
        self._reached: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    def hear(self, index: int | None, output: Any) -> None:
        """Note the output of a layer; None stands for the beginning of the model's forward."""
        if index is None:
            self._listening = torch.is_grad_enabled() and self.sampled()
        elif self._listening:
            tensors = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.requires_grad]
            # The place in the graph, not the tensor: an in-place operation may follow on that.
            self._edges += [(index, get_gradient_edge(t)) for t in tensors[:1]]

    def pause(self) -> None:
        """Stop listening: checkpointing will run layers again during the backward pass."""
        self._listening = False

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None:
        """Find the branches in the graph, and get ready to read the backward pass."""
        del factor, whole_update  # samples are apart in features: their products just add up
        self.pause()
        self._handles.close()
        layers = {(edge.node, edge.output_nr): index for index, edge in self._edges}
        tokens = [edge for _, edge in self._edges]  # they keep the graph alive for the hooks
        self._edges.clear()
        main = list(walk(losses[0]))
        visible = {step.target for step in main} & layers.keys()
        self._check_seen({layers[edge] for edge in visible})
        nodes = {step.node for step in main}
        reached = np.zeros((len(self.layers), len(losses)), dtype=bool)
        arrived: dict[Edge, list[Tensor | None]] = {edge: [None] * len(losses) for edge in visible}
        for edge in visible:
            reached[layers[edge], 0] = True
        for column, loss in enumerate(losses[1:], start=1):
            for step in walk(loss, stops=visible):
                if step.target in visible:
                    self._check_apart(step, nodes, self.layers[layers[step.target]])
                    reached[layers[step.target], column] = True
                    self._handles.enter_context(_on_branch(step, arrived[step.target], column))
        for edge in visible:
            self._handles.enter_context(self._on_arrival(edge, layers[edge], arrived[edge]))
        self._handles.callback(tokens.clear)
        self._reached = reached if self._reached is None else self._reached | reached

    def disarm(self) -> None:
        """Take the hooks of one backward pass away."""
        self._handles.close()

    def measure(self) -> Measurement:
        """Finish the update."""
        self.disarm()
        assert self._reached is not None
        count = self._reached.shape[1]
        nothing = torch.zeros(count * (count + 1) // 2, dtype=torch.float64)
        like = next(iter(self._products.values()), nothing)
        products = torch.stack([self._products.get(i, nothing).to(like) for i in self.owners])
        if self.group is not None:
            # The loss of the whole batch is a mean over processes, and so are its gradients.
            dist.all_reduce(products, group=self.group)
            products /= dist.get_world_size(self.group) ** 2
        result = Measurement(products, self._reached, zero_is_unreached=False)
        self.reset()
        return result

    def close(self) -> None:
        """Take all hooks away."""
        self.reset()
        self.hooks.close()

    def _on_arrival(self, edge: Edge, index: int, arrived: list[Tensor | None]) -> Any:
        def multiply(gradients: tuple[Tensor | None, ...]) -> None:
            arrived[0] = gradients[edge[1]]
            if arrived[0] is not None:
                found = inner_products(arrived, first_is_sum=True)
                before = self._products.get(index)
                self._products[index] = found if before is None else before + found

        return edge[0].register_prehook(multiply)

    def _check_seen(self, seen: set[int]) -> None:
        missing = [name for index, name in enumerate(self.layers) if index not in seen]
        if missing:
            raise ValueError(
                f"`layers`: the main loss was not seen to come through {', '.join(missing)} in "
                "this forward pass; nor is anything after `close`, or by a copy of the trace. "
                "Inside a compiled model layers are invisible: use level='parameter', or "
                "torch.compiler.set_stance('force_eager')"
            )

    def _check_apart(self, step: Step, nodes: set[Any], layer: str) -> None:
        if step.node in nodes:
            raise ValueError(
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


def _on_branch(step: Step, arrived: list[Tensor | None], column: int) -> Any:
    def add(sent: tuple[Tensor | None, ...], received: tuple[Tensor | None, ...]) -> None:
        arrived[column] = added(arrived[column], sent[step.position])

    return step.node.register_hook(add)
