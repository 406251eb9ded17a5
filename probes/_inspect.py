"""What each layer yields, from a forward pass that computes shapes only."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from probes._pooling import Pool, first_tensor, resolve_pool
from resonance import device_of, evaluating, preserving_rng

_BATCH = 2
_SIZES = (224, 32, 64, 28, 299, 384, 256)


@dataclass(frozen=True)
class Point:
    """An attachment point: how its output is pooled, and what one row of features is like."""

    module: nn.Module
    pool: Pool
    width: int
    like: Tensor  # an empty tensor on the features' device, of their dtype


def inspect(
    root: nn.Module,
    layers: dict[str, nn.Module],
    pool: str | Callable[[Tensor], Tensor],
    sample: Any,
    classes: int | None,
) -> tuple[dict[str, Point], int]:
    """Find every layer's pooling and width, and the number of classes.

    Nothing is computed and nothing in the model changes: the pass runs in eval mode on tensors
    without data. Where a model needs real numbers (control flow that depends on data, sharded
    parameters), it is run once on zeros, or on `sample`, without gradients.

    Raises:
        ValueError: If no input is known, or a layer does not run or yields no features.
    """
    outputs, result = _dry_run(root, layers, sample)
    points = {}
    for name, module in layers.items():
        if name not in outputs:
            raise ValueError(f"`layers` at {name!r}: the layer never runs in a forward pass")
        points[name] = _point(name, module, outputs[name], pool, root)
    return points, classes if classes is not None else _classes(root, result)


def _point(
    name: str,
    module: nn.Module,
    output: Any,
    pool: str | Callable[[Tensor], Tensor],
    root: nn.Module,
) -> Point:
    x, samples = output
    if x is None or not x.is_floating_point():
        kind = "no tensor" if x is None else str(x.dtype)
        raise ValueError(
            f"`layers` at {name!r}: expected a floating tensor, the layer yields {kind}"
        )
    if not callable(pool) and len(x) != samples:
        raise ValueError(
            f"`layers` at {name!r}: expected one entry per sample first, got shape "
            f"{tuple(x.shape)} for {samples} samples; choose an outer layer or a callable `pool`"
        )
    way = resolve_pool(pool, x, name, module, root)
    features = way(x)
    if features.dim() not in (2, 3) or len(features) != samples:
        raise ValueError(
            f"`pool`: expected features ({samples}, width) at {name!r}, got {tuple(features.shape)}"
        )
    like = torch.empty(0, device=features.device, dtype=features.dtype)
    return Point(module, way, features.shape[-1], like)


def _dry_run(
    root: nn.Module, layers: dict[str, nn.Module], sample: Any
) -> tuple[dict[str, tuple[Tensor | None, int]], Any]:
    inputs = [sample] if sample is not None else list(_guesses(root))
    # Sharded parameters are gathered by hooks, which must not see tensors without data.
    sharded = any(hasattr(p, "full_tensor") for p in root.parameters())
    first: Exception | None = None
    for fake in (False,) if sharded else (True, False):
        for candidate in inputs if fake else inputs[:1]:
            try:
                return _forward(root, layers, candidate, fake=fake)
            except Exception as error:  # any model may fail in any way on a guessed input
                first = first or error
    hint = "" if sample is not None else "; give an input batch as `sample`"
    raise ValueError(f"`model`: a forward pass failed{hint} ({type(first).__name__}: {first})")


def _forward(
    root: nn.Module, layers: dict[str, nn.Module], sample: Any, *, fake: bool
) -> tuple[dict[str, tuple[Tensor | None, int]], Any]:
    seen: dict[str, tuple[Tensor | None, int]] = {}
    with ExitStack() as stack:
        stack.enter_context(evaluating(root))
        stack.enter_context(preserving_rng(p.device for p in root.parameters()))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if fake:
            mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            sample = tree_map(lambda x: _faked(x, mode), sample)
        samples = _samples(sample)
        for name, module in layers.items():

            def note(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
                seen[name] = (first_tensor(output), samples)

            stack.enter_context(module.register_forward_hook(note))
        result = _call(root, sample)
    return seen, result


def _faked(x: Any, mode: FakeTensorMode) -> Any:
    return mode.from_tensor(x) if isinstance(x, Tensor) else x


def _call(root: nn.Module, sample: Any) -> Any:
    if isinstance(sample, dict):
        return root(**sample)
    return root(*sample) if isinstance(sample, list | tuple) else root(sample)


def _samples(sample: Any) -> int:
    values = sample.values() if isinstance(sample, dict) else sample
    first = sample if isinstance(sample, Tensor) else next(iter(values))
    return len(first)


def _guesses(root: nn.Module) -> Iterator[Tensor]:
    """Inputs that a model of this kind usually takes, the likeliest first."""
    device, dtype = device_of(root), next((p.dtype for p in root.parameters()), torch.float32)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(_BATCH, *shape, device=device, dtype=dtype)

    config = getattr(root, "pretrained_cfg", None) or getattr(root, "default_cfg", None) or {}
    size = config.get("input_size") if isinstance(config, dict) else None
    first = next((m for m in root.modules() if isinstance(m, _ENTRIES)), None)
    channels = first.in_channels if isinstance(first, nn.modules.conv._ConvNd) else 3
    for owner in (getattr(root, "patch_embed", None), root):
        known = getattr(owner, "img_size", None) or getattr(owner, "image_size", None)
        if known is not None:
            height, width = (known, known) if isinstance(known, int) else known
            yield zeros(channels, height, width)
    if size is not None:
        yield zeros(*size)
    if isinstance(first, nn.Linear):
        yield zeros(first.in_features)
    elif isinstance(first, nn.Conv3d):
        yield zeros(channels, 16, 224, 224)
        yield zeros(channels, 16, 112, 112)
    elif isinstance(first, nn.Conv1d):
        yield zeros(channels, 1024)
    elif first is not None:
        for side in _SIZES:
            yield zeros(channels, side, side)


_ENTRIES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def _classes(root: nn.Module, result: Any) -> int:
    if getattr(root, "num_classes", None) == 0:
        raise ValueError("`classes`: the model has no classifier (num_classes=0); give a number")
    logits = getattr(result, "logits", None)
    logits = logits if isinstance(logits, Tensor) else first_tensor(result)
    if logits is None or logits.dim() != 2:
        shape = None if logits is None else tuple(logits.shape)
        raise ValueError(f"`classes`: cannot tell from an output of shape {shape}; give a number")
    return int(logits.shape[1])
