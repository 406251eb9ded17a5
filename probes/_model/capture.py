"""Forward hooks that hand a probe its features, and nothing to anybody else.

Three kinds of hooks follow one forward pass: `_OpeningHook` before the model's forward decides
whether to capture, `_LayerHook` after each attachment point keeps its pooled output, and
`_ClosingHook` after the model's forward declares the set complete. They write into one `Capture`,
which the probe owns.
"""

import weakref
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from probes._model.pass_state import PassState
from probes._model.pooling import Pool
from resonance_toolkit import first_tensor


@dataclass
class Capture:
    """The features of the latest forward pass, one per call of a layer, or why there are none."""

    state: PassState = PassState.DETACHED
    listening: bool = False  # capture in eval mode and without gradients, too
    adaptive: bool = False  # keep gradient edges for an adaptive strength

    grad: bool = False  # whether the pass began with gradients enabled
    reentrant: bool = False  # whether a layer then ran without them
    nested_layer: str = ""  # a layer that yielded a nested tensor

    features: dict[str, list[Tensor]] = field(default_factory=dict)
    edges: dict[str, list[GradientEdge]] = field(default_factory=dict)
    strengths: dict[str, Any] = field(default_factory=dict)  # those of the latest loss

    def use(self) -> None:
        """Let go of the graph; what is left serves measurements until the next pass."""
        self.features = {
            name: [x.detach() for x in tensors] for name, tensors in self.features.items()
        }
        self.edges = {}
        self.state = PassState.USED


def hook_into(
    root: nn.Module, points: dict[str, tuple[nn.Module, Pool]], capture: Capture
) -> list[RemovableHandle]:
    """Register the hooks; removing the handles leaves no trace."""
    make_compiled_code_check_hooks()

    handles = [
        root.register_forward_pre_hook(_OpeningHook(capture, root), prepend=True),
        root.register_forward_hook(_ClosingHook(capture, root)),
    ]
    for name, (module, pool) in points.items():
        handles.append(module.register_forward_hook(_LayerHook(capture, module, name, pool)))

    capture.state = PassState.NO_PASS
    return handles


def make_compiled_code_check_hooks() -> None:
    """Let all compiled code of this process check for hooks before it runs.

    By default `torch.compile` does not look whether hooks were added since, or whether another
    model of the same structure has some: a probe would miss such a pass and take an older one for
    the latest. Code compiled without that check is dropped, once, and compiled again when needed.
    """
    if torch._dynamo.config.skip_nnmodule_hook_guards:
        torch._dynamo.config.skip_nnmodule_hook_guards = False
        torch._dynamo.reset_code_caches()


class Hook:
    """Knows its probe and module weakly, does nothing on replicas, and is inert when copied."""

    def __init__(self, capture: Capture, module: nn.Module) -> None:
        self.capture = weakref.ref(capture)
        self.module = weakref.ref(module)

    def listener(self, module: nn.Module) -> Capture | None:
        """Return the capture, unless this call of the module is none that counts."""
        # A checkpoint runs its layers a second time, inside the backward pass. While compiling
        # there is no backward pass to ask for.
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and torch._C._current_graph_task_id() != -1:
            return None

        # A replica shares the hooks of the module that it was copied from.
        return self.capture() if module is self.module() else None

    def __reduce__(self) -> tuple[Any, ...]:
        # Both `copy` and `pickle` ask for it: a copy of the model is nobody's probe. Its hook is a
        # function that does nothing whatever it is given, and one that Python has itself: a saved
        # model is loaded where this toolkit is not installed, too.
        return getattr, (nullcontext, "__exit__")


class _OpeningHook(Hook):
    """Before the model's forward: forget the last pass, and decide whether to capture this one."""

    def __call__(self, module: nn.Module, args: Any) -> None:
        capture = self.listener(module)
        if capture is None:
            return

        # New objects, not `.clear()`: a compiled model would guard on the old ones' contents.
        capture.features = {}
        capture.edges = {}
        capture.reentrant = False
        capture.nested_layer = ""
        capture.grad = torch.is_grad_enabled()

        if capture.listening or (module.training and capture.grad):
            capture.state = PassState.RUNNING
        elif module.training:
            capture.state = PassState.NO_GRADIENTS
        else:
            capture.state = PassState.EVAL_MODE


class _ClosingHook(Hook):
    """After the model's forward: what runs later, or in a pass that failed, does not count."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if capture is not None and capture.state is PassState.RUNNING:
            capture.state = PassState.READY


class _LayerHook(Hook):
    """After a layer's forward: pool its output and keep that."""

    def __init__(self, capture: Capture, module: nn.Module, name: str, pool: Pool) -> None:
        super().__init__(capture, module)
        self.name = name
        self.pool = pool

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if capture is None or capture.state is not PassState.RUNNING:
            return

        # A reentrant checkpoint runs its layers without gradients first.
        if capture.grad and not torch.is_grad_enabled():
            capture.reentrant = True
            return

        x = first_tensor(output)
        if x is None:
            return

        if x.is_nested and self.pool.custom is None:
            capture.nested_layer = self.name
            return

        capture.features.setdefault(self.name, []).append(self.pool(x))

        if capture.adaptive and x.requires_grad and not torch.compiler.is_compiling():
            # An edge, not the tensor: it keeps no activation and survives in-place operations.
            capture.edges.setdefault(self.name, []).append(get_gradient_edge(x))
