"""From the layers of a model to attachment points: how each is pooled, and how wide it is then."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from probes._model.dry_run import ForwardRecord, dry_run
from probes._model.pooling import LayerOutput, Pool, Pooling, resolve_pool
from probes._model.sequences import keep_blocks, without_encoder
from resonance_toolkit import Blocks, logits_of


@dataclass(frozen=True)
class Point:
    """An attachment point: how its output is pooled, and what one row of features is like."""

    module: nn.Module
    pool: Pool
    width: int
    template: Tensor  # an empty tensor on the features' device, of their dtype


def find_attachment_points(
    root: nn.Module, layers: dict[str, nn.Module], pool: Pooling, sample: Any, classes: int | None
) -> tuple[dict[str, Point], int, str | None]:
    """Find every layer's pooling and width, the number of classes, and the reason for the layers.

    Args:
        root: The model, without wrappers.
        layers: Modules by name; of `Blocks`, which have a reason, those that cannot be probed are
            left out, and, where the output has positions, those with others.
        pool: How their outputs become features.
        sample: An input batch; None tries those that models of this kind usually take.
        classes: The number of classes; None takes the width of the model's output: the last axis
            of `(sample, class)` and `(sample, token, class)`, the second of feature maps.

    Raises:
        ValueError: If no input is known, or a layer does not run or yields no features.
    """
    record = dry_run(root, layers, sample)

    points = {}
    first_refusal: ValueError | None = None
    has_positions = _has_positions(record.output)
    if isinstance(layers, Blocks) and has_positions:
        layers = _with_positions_of_the_output(layers, root, record)
    for name, module in layers.items():
        try:
            points[name] = _make_point(name, module, record, pool, root, may_wait=has_positions)
        except ValueError as refusal:
            # Of layers that nobody named, those that cannot be probed are left out.
            if not isinstance(layers, Blocks):
                raise
            first_refusal = first_refusal or refusal

    try:
        if not points and first_refusal is not None:
            raise first_refusal
    finally:
        # An error knows this frame: one that is kept here would keep the model as well.
        first_refusal = None

    n_classes = classes if classes is not None else _count_classes(root, record.output)
    reason = _explain(layers, list(points)) if isinstance(layers, Blocks) else None
    return points, n_classes, reason


def _with_positions_of_the_output(blocks: Blocks, root: nn.Module, record: ForwardRecord) -> Blocks:
    """Leave out blocks whose tokens are not those of the output, if there are others."""
    blocks = without_encoder(blocks, root)
    logits = logits_of(record.output)
    if logits.dim() != 3:
        return blocks

    n_tokens = logits.shape[1]
    outputs = {name: record.layer_outputs.get(name) for name in blocks}
    fitting = [
        name
        for name, output in outputs.items()
        if output is None or output.dim() != 3 or output.shape[1] == n_tokens
    ]
    return keep_blocks(blocks, fitting, "whose positions are those of the output")


def _explain(blocks: Blocks, layers: list[str]) -> str:
    left_out_names = [name for name in blocks if name not in layers]
    if not left_out_names:
        return blocks.reason
    return f"{blocks.reason}; not {', '.join(left_out_names)}, which cannot be probed"


def _make_point(
    name: str,
    module: nn.Module,
    record: ForwardRecord,
    pool: Pooling,
    root: nn.Module,
    *,
    may_wait: bool,
) -> Point:
    if name not in record.layer_outputs:
        raise ValueError(
            f"`layers` at {name!r}: the layer never runs in eval mode, where widths are found; "
            "choose one that does, not one for training only or one that is never called"
        )

    x = _check_layer_output(name, record, is_custom=callable(pool))
    output = LayerOutput(x, name, module)
    resolved_pool = resolve_pool(pool, output, root, record.n_patches, may_wait=may_wait)

    if name in record.layer_items:
        resolved_pool = replace(resolved_pool, item=record.layer_items[name])

    features = resolved_pool(x)
    n_samples = record.n_samples
    if features.dim() < 2 or len(features) != n_samples:
        raise ValueError(
            f"`pool`: expected features ({n_samples}, width) at {name!r}, got "
            f"{tuple(features.shape)}"
        )

    template = torch.empty(0, device=features.device, dtype=features.dtype)
    return Point(module, resolved_pool, features.shape[-1], template)


def _check_layer_output(name: str, record: ForwardRecord, *, is_custom: bool) -> Tensor:
    """Return a layer's output; what only a custom pooling understands is refused for others."""
    x = record.layer_outputs[name]

    if x is None:
        kind = "no tensor"
    elif x.is_nested and not is_custom:
        kind = f"a nested {x.dtype}"
    elif not x.is_floating_point():
        kind = f"one of {x.dtype}"
    else:
        kind = ""
    if x is None or kind:
        raise ValueError(
            f"`layers` at {name!r}: expected a floating tensor, the layer yields {kind}"
        )

    if not is_custom and len(x) != record.n_samples:
        raise ValueError(
            f"`layers` at {name!r}: expected one entry per sample first, got shape "
            f"{tuple(x.shape)} for {record.n_samples} samples; choose an outer layer or a callable "
            "`pool`"
        )
    return x


def _count_classes(root: nn.Module, output: Any) -> int:
    if getattr(root, "num_classes", None) == 0:
        raise ValueError("`classes`: the model has no classifier (num_classes=0); give a number")

    try:
        logits = logits_of(output)
    except ValueError:
        raise ValueError(
            f"`classes`: cannot tell from an output of type {type(output).__name__}; give a number"
        ) from None

    # Encoders without a head yield hidden states, whose width is not the number of classes.
    is_hidden_state = logits is _find(output, "last_hidden_state")
    if logits.dim() < 2 or is_hidden_state:
        kind = "hidden states" if is_hidden_state else "an output"
        shape = tuple(logits.shape)
        raise ValueError(f"`classes`: cannot tell from {kind} of shape {shape}; give a number")
    return int(logits.shape[class_axis(logits)])


def class_axis(logits: Tensor) -> int:
    """Say where the classes are: second in maps `(sample, class, height, width)`, else last."""
    return 1 if logits.dim() > 3 else logits.dim() - 1


def _has_positions(output: Any) -> bool:
    """Tell whether a model says something of each position, so that targets may do so, too."""
    try:
        return logits_of(output).dim() > 2
    except ValueError:
        return False


def _find(output: Any, name: str) -> Any:
    by_key = output.get(name) if isinstance(output, Mapping) else None
    return getattr(output, name, by_key)
