"""Forward hooks that hand a probe its features, and nothing to anybody else.

Three kinds of hooks follow one forward pass: `_OpeningHook` before the model's forward decides
whether to capture, `_LayerHook` after each attachment point keeps its pooled output, and
`_ClosingHook` after the model's forward declares the set complete. They write into one `Capture`,
which the probe owns.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from probes._model.never_compiled import keep_out_of_compiled_code
from probes._model.next_token import token_ids_of
from probes._model.pass_state import PassState
from probes._model.pooling import Pool
from probes._model.sequences import (
    forward_parameters,
    has_two_sequences,
    is_of_encoder,
    mask_of,
)
from resonance_toolkit import positions_that_count


@dataclass
class Capture:
    """The features of the latest forward pass, one per call of a layer, or why there are none."""

    state: PassState = PassState.DETACHED
    listening: bool = False  # capture in eval mode and without gradients, too
    adaptive: bool = False  # keep gradient edges for an adaptive strength
    listen_only: bool = False  # keep features without their graph: nothing is sent back

    grad: bool = False  # whether the pass began with gradients enabled
    reentrant: bool = False  # whether a layer then ran without them
    nested_layer: str = ""  # a layer that yielded a nested tensor
    flat_layer: str = ""  # one that yielded fewer axes than it is pooled over
    deep_layer: str = ""  # one that yielded positions where it had none when it was attached to

    features: dict[str, list[Tensor]] = field(default_factory=dict)
    edges: dict[str, list[GradientEdge]] = field(default_factory=dict)

    # Padding masks `(sample, position)`, True where a position is real: as the call gave them, of
    # the model's only sequence or its encoder's and of its decoder's, and of each layer they fit.
    call_counts: Tensor | None = None
    decoder_counts: Tensor | None = None
    counts: dict[str, Tensor] = field(default_factory=dict)

    # The tokens that the model read, which tell whether targets are those of the next position.
    input_ids: Tensor | None = None

    # Layers whose positions are not those of the model's output.
    encoder_layers: frozenset[str] = frozenset()

    strengths: dict[str, Any] = field(default_factory=dict)  # those of the latest loss
    targets: Any = None  # those of this pass's loss, as the loss understood them

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
        root.register_forward_pre_hook(_OpeningHook(capture, root), prepend=True, with_kwargs=True),
        root.register_forward_hook(_ClosingHook(capture, root)),
    ]
    for name, (module, pool) in points.items():
        layer_hook = _LayerHook(capture, module, name, pool, mask=mask_of(name, root))
        handles.append(module.register_forward_hook(layer_hook))

    if has_two_sequences(root):
        capture.encoder_layers = frozenset(name for name in points if is_of_encoder(name))
    capture.state = PassState.NO_PASS
    return handles


def make_compiled_code_check_hooks() -> None:
    """Let all compiled code of this process check for hooks before it runs.

    By default `torch.compile` does not look whether hooks were added since, or whether another
    model of the same structure has some: a probe would miss such a pass and take an older one for
    the latest. Code compiled without that check is dropped, once, and compiled again when needed.
    """
    # Here, since loading the compiler takes nearly as long as loading torch.
    from torch import _dynamo

    if _dynamo.config.skip_nnmodule_hook_guards:
        _dynamo.config.skip_nnmodule_hook_guards = False
        _dynamo.reset_code_caches()
    keep_out_of_compiled_code()


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

    def __deepcopy__(self, _: Any) -> Callable[..., None]:
        # A copy of the model is nobody's probe.
        return _inert_hook

    def __reduce__(self) -> tuple[Any, ...]:
        # Nor is a model in a file, which must load where this toolkit is not installed: this is a
        # function that Python has itself, and that does nothing whatever a module gives it.
        return getattr, (nullcontext, "__exit__")


class _OpeningHook(Hook):
    """Before the model's forward: forget the last pass, and decide whether to capture this one."""

    def __init__(self, capture: Capture, module: nn.Module) -> None:
        super().__init__(capture, module)
        self.parameter_names = forward_parameters(module)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        capture = self.listener(module)
        if capture is None:
            return

        # New objects, not `.clear()`: a compiled model would guard on the old ones' contents.
        capture.features = {}
        capture.edges = {}
        capture.counts = {}
        capture.call_counts = None
        capture.decoder_counts = None
        capture.input_ids = None
        capture.targets = None
        capture.reentrant = False
        capture.nested_layer = ""
        capture.flat_layer = ""
        capture.deep_layer = ""
        capture.grad = torch.is_grad_enabled()

        if capture.listening or (module.training and capture.grad):
            capture.state = PassState.RUNNING
        elif module.training:
            capture.state = PassState.NO_GRADIENTS
        else:
            capture.state = PassState.EVAL_MODE

        if capture.state is PassState.RUNNING:
            # A mask may also come by position, as in bert(ids, mask). Word by word, since the
            # compiler of torch 2.7 knows neither `dict(zip(...))` nor `|` of mappings.
            inputs = dict(kwargs)
            for index in range(min(len(args), len(self.parameter_names))):
                inputs[self.parameter_names[index]] = args[index]
            capture.input_ids = token_ids_of(inputs)
            capture.call_counts = positions_that_count(inputs)
            capture.decoder_counts = positions_that_count(inputs, of_decoder=True)


class _ClosingHook(Hook):
    """After the model's forward: what runs later, or in a pass that failed, does not count."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if capture is not None and capture.state is PassState.RUNNING:
            capture.state = PassState.READY


class _LayerHook(Hook):
    """After a layer's forward: pool its output and keep that."""

    def __init__(
        self, capture: Capture, module: nn.Module, name: str, pool: Pool, *, mask: str
    ) -> None:
        super().__init__(capture, module)
        self.name = name
        self.pool = pool
        self.mask = mask

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        capture = self.listener(module)
        if capture is None or capture.state is not PassState.RUNNING:
            return

        # A reentrant checkpoint runs its layers without gradients first; who only listens needs
        # none.
        if capture.grad and not torch.is_grad_enabled() and not capture.listen_only:
            capture.reentrant = True
            return

        x = self.pool.choose_tensor(output)
        if x is None:
            return

        if x.is_nested and self.pool.custom is None:
            capture.nested_layer = self.name
            return

        if not self.pool.fits(x):
            if self.pool.kind == "vector":
                capture.deep_layer = self.name
            else:
                capture.flat_layer = self.name
            return

        masks = {"model": capture.call_counts, "decoder": capture.decoder_counts}
        counts = self.pool.counts_at(x, masks.get(self.mask))
        if counts is not None:
            capture.counts[self.name] = counts

        # Around the pooling, not after it: a pool of the user's may use parameters of the model.
        with torch.no_grad() if capture.listen_only else nullcontext():
            features = self.pool.capture(x, counts)
        capture.features.setdefault(self.name, []).append(features)

        if capture.adaptive and x.requires_grad and not torch.compiler.is_compiling():
            # An edge, not the tensor: it keeps no activation and survives in-place operations.
            capture.edges.setdefault(self.name, []).append(get_gradient_edge(x))


def _inert_hook(*_: Any) -> None:
    """Do nothing: what a hook becomes in a copy of the model."""
