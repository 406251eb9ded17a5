"""Tensors inside tuples, lists and mappings: the one that stands for all, and picked samples."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from resonance_toolkit import first_tensor, sample_tensor


def replace_sample_tensor(nest: Any, value: Tensor, n_samples: int) -> Any:
    """Return a nest of the same kind with another tensor in the place of `sample_tensor`."""
    old_tensor = sample_tensor(nest, n_samples)
    if old_tensor is first_tensor(nest):
        return replace_first_tensor(nest, value)

    items = list(nest)
    place = next(i for i, item in enumerate(items) if item is old_tensor)
    items[place] = value
    return _as_kind_of(nest, items)


def replace_first_tensor(nest: Any, value: Tensor) -> Any:
    """Return a nest of the same kind with another first tensor; the rest is the same objects.

    Args:
        nest: A tensor, or tuples, lists and mappings with one inside, as `first_tensor` finds it.
        value: What takes its place.
    """
    if isinstance(nest, Tensor):
        return value

    if isinstance(nest, Mapping):
        changed: Any = copy.copy(nest)
        key = next(key for key, item in nest.items() if first_tensor(item) is not None)
        changed[key] = replace_first_tensor(nest[key], value)
        return changed

    items = list(nest)
    place = next(i for i, item in enumerate(items) if first_tensor(item) is not None)
    items[place] = replace_first_tensor(items[place], value)

    return _as_kind_of(nest, items)


def _as_kind_of(nest: Any, items: list[Any]) -> Any:
    # A named tuple takes its items one by one.
    make = getattr(nest, "_make", type(nest))
    return make(items)


def replace_logits(outputs: Any, logits: Tensor) -> Any:
    """Return what a model returned with other logits, where `logits_of` finds them."""
    if isinstance(outputs, Tensor):
        return logits

    changed: Any = copy.copy(outputs)
    if isinstance(getattr(outputs, "logits", None), Tensor):
        changed.logits = logits
        return changed
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        changed["logits"] = logits
        return changed
    return replace_first_tensor(outputs, logits)


def pick_samples(nest: Any, rows: Tensor) -> Any:
    """Pick samples, by number, from every tensor that has samples."""
    return tree_map_only(
        Tensor, lambda leaf: leaf[rows.to(leaf.device)] if leaf.dim() else leaf, nest
    )
