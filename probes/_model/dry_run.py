"""What each layer yields, from a forward pass that computes shapes only."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.utils._pytree import tree_map

from probes._model.call_model import call_model
from probes._model.distributed import resharding
from probes._model.failed_pass import failed_pass
from probes._model.likely_inputs import likely_inputs
from probes._model.pooling import Pool, resolve_pool
from resonance_toolkit import evaluating, first_tensor, is_sharded, preserving, preserving_rng


@dataclass(frozen=True)
class Point:
    """An attachment point: how its output is pooled, and what one row of features is like."""

    module: nn.Module
    pool: Pool
    width: int
    like: Tensor  # an empty tensor on the features' device, of their dtype


def find_attachment_points(
    root: nn.Module,
    layers: dict[str, nn.Module],
    pool: str | Callable[[Tensor], Tensor],
    sample: Any,
    classes: int | None,
) -> tuple[dict[str, Point], int]:
    """Find every layer's pooling and width, and the number of classes.

    Nothing is computed and nothing in the model changes: a copy without data runs in eval mode.
    Where a model cannot be copied so, or needs real numbers (control flow that depends on data,
    sharded parameters), it is run itself, once, on zeros or on `sample`, without gradients.

    Raises:
        ValueError: If no input is known, or a layer does not run or yields no features.
    """
    seen = _dry_run(root, layers, sample)
    points = {}
    for name, module in layers.items():
        if name not in seen.outputs:
            raise ValueError(
                f"`layers` at {name!r}: the layer never runs in eval mode, where widths are found; "
                "choose one that does, not one for training only or one that is never called"
            )
        points[name] = _point(name, module, seen, pool, root)
    return points, classes if classes is not None else _classes(root, seen.result)


def _point(
    name: str,
    module: nn.Module,
    seen: "_Seen",
    pool: str | Callable[[Tensor], Tensor],
    root: nn.Module,
) -> Point:
    x, samples = seen.outputs[name], seen.samples
    if x is None or not x.is_floating_point() or (x.is_nested and not callable(pool)):
        kind = "no tensor" if x is None else f"{'a nested' if x.is_nested else 'one of'} {x.dtype}"
        raise ValueError(
            f"`layers` at {name!r}: expected a floating tensor, the layer yields {kind}"
        )
    if not callable(pool) and len(x) != samples:
        raise ValueError(
            f"`layers` at {name!r}: expected one entry per sample first, got shape "
            f"{tuple(x.shape)} for {samples} samples; choose an outer layer or a callable `pool`"
        )
    way = resolve_pool(pool, x, name, module, root, seen.patches)
    features = way(x)
    if features.dim() not in (2, 3) or len(features) != samples:
        raise ValueError(
            f"`pool`: expected features ({samples}, width) at {name!r}, got {tuple(features.shape)}"
        )
    like = torch.empty(0, device=features.device, dtype=features.dtype)
    return Point(module, way, features.shape[-1], like)


@dataclass
class _Seen:
    """What a dry run has shown."""

    samples: int
    outputs: dict[str, Tensor | None] = field(default_factory=dict)
    patches: int | None = None  # positions that a patch embedding gave
    result: Any = None


def _dry_run(root: nn.Module, layers: dict[str, nn.Module], sample: Any) -> _Seen:
    inputs = [sample] if sample is not None else list(likely_inputs(root))
    # Sharded parameters are gathered by hooks, which must not see tensors without data.
    sharded = is_sharded(root)
    first: Exception | None = None
    for fake in (False,) if sharded else (True, False):
        for candidate in inputs if fake else inputs[:1]:
            try:
                if fake:
                    with preserving_rng():
                        return _fake_forward(root, layers, candidate)
                with preserving(root, values=not sharded), resharding(root):
                    return _forward(root, layers, candidate)
            except Exception as error:  # any model may fail in any way on a guessed input
                first = first or error
    raise failed_pass(first, guessed=sample is None) from None


def _fake_forward(root: nn.Module, layers: dict[str, nn.Module], sample: Any) -> _Seen:
    """Run a copy whose tensors have no data: nothing of the user's is touched."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        with FakeCopyMode(mode):
            memo: dict[int, Any] = {}
            twin = copy.deepcopy(root, memo)
        for module in twin.modules():
            module._forward_hooks.clear()  # a recorder of the user's would record this pass
        twins = {name: memo[id(module)] for name, module in layers.items()}
        return _forward(twin, twins, tree_map(lambda x: _faked(x, mode), sample))


def _forward(root: nn.Module, layers: dict[str, nn.Module], sample: Any) -> _Seen:
    seen = _Seen(_samples(sample))

    def note(name: str, _: nn.Module, __: Any, output: Any) -> None:
        seen.outputs[name] = first_tensor(output)

    def note_patches(_: nn.Module, __: Any, output: Any) -> None:
        seen.patches = seen.patches or output.shape[-2:].numel()

    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_without_fastpath())  # it makes nested tensors, as training never does
        for name, module in layers.items():
            stack.enter_context(module.register_forward_hook(partial(note, name)))
        for module in root.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride != (1, 1):
                stack.enter_context(module.register_forward_hook(note_patches))
        seen.result = call_model(root, sample)
    return seen


@contextmanager
def _without_fastpath() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _faked(x: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(x) if isinstance(x, Tensor) else x


def _samples(sample: Any) -> int:
    values = sample.values() if isinstance(sample, dict) else sample
    first = sample if isinstance(sample, Tensor) else next(iter(values))
    return len(first)


def _classes(root: nn.Module, result: Any) -> int:
    if getattr(root, "num_classes", None) == 0:
        raise ValueError("`classes`: the model has no classifier (num_classes=0); give a number")
    logits = getattr(result, "logits", None)
    logits = logits if isinstance(logits, Tensor) else first_tensor(result)
    if logits is None or logits.dim() != 2:
        shape = None if logits is None else tuple(logits.shape)
        raise ValueError(f"`classes`: cannot tell from an output of shape {shape}; give a number")
    return int(logits.shape[1])
