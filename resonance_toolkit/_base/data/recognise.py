"""What a thing given as data is: one whole batch, batches, single samples, or none of these."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from resonance_toolkit._base.data.forms import (
    LABEL_NAMES,
    are_numbers,
    is_array,
    is_pair,
    is_scalar,
)


def is_whole_batch(data: Any, *, needs_targets: bool = True) -> bool:
    """Tell whether data is one batch with all its samples, not a source of batches.

    Of two things in a tuple or list, the second decides: an array is the targets of the first; a
    tuple or mapping is a second batch, unless the first cannot be one. Where targets are not
    needed, None may stand for them, and an array, or a tuple of one or of more than two arrays, is
    inputs alone.
    """
    if isinstance(data, Mapping):
        return True
    if not needs_targets and _are_inputs_alone(data):
        return True
    if not is_pair(data):
        return False

    inputs, targets = data
    if not needs_targets and targets is None:
        return True
    if isinstance(inputs, Mapping) and isinstance(targets, Mapping):
        # Two of one form, where targets are not needed, are two batches of inputs.
        has_own_names = needs_targets or set(inputs) != set(targets)
        return has_own_names and not any(name in inputs for name in LABEL_NAMES)
    if _are_several_targets(data, inputs, targets, needs_targets=needs_targets):
        return True
    are_targets = is_array(targets) or are_numbers(targets)
    return are_targets and not isinstance(inputs, str | bytes) and not is_scalar(inputs)


def are_single_samples(items: Any) -> bool:
    """Tell whether a list holds samples, not batches: each has one number for a target."""

    def is_sample(item: Any) -> bool:
        if isinstance(item, Mapping):
            return any(is_scalar(item.get(name)) for name in LABEL_NAMES)
        return is_pair(item) and is_scalar(item[1]) and not is_scalar(item[0])

    return len(items) > 0 and all(map(is_sample, items))


def are_splits(data: Any) -> bool:
    """Tell whether data is a mapping of whole datasets, as a `DatasetDict` of Hugging Face."""
    return isinstance(data, Mapping) and any(
        hasattr(value, "__getitem__") and hasattr(value, "column_names") for value in data.values()
    )


def may_be_two_batches(data: Any) -> bool:
    if not isinstance(data, list) or len(data) != 2 or not all(map(is_array, data)):
        return False
    first, second = data
    are_alike = first.shape[1:] == second.shape[1:] and first.dtype == second.dtype
    return bool(are_alike and first.ndim > 1)


def refuse_lone_tensors(data: Any, *, needs_targets: bool) -> None:
    """Say what is missing where tensors, or a tensor and a number, are no pair."""
    if not isinstance(data, list | tuple) or not needs_targets:
        return

    array = next((item for item in data if is_array(item)), None)
    if array is None:
        return
    if len(data) != 2:
        raise TypeError(
            f"`data`: expected pairs (inputs, targets), got a {type(array).__name__} in a "
            f"{type(data).__name__} of length {len(data)}; put several inputs into a tuple of "
            "their own, ((x1, x2), y), and beside single samples their targets, "
            "(torch.stack(samples), targets)"
        )
    if data[1] is None:
        raise TypeError("`data`: expected targets beside the inputs, got None")
    if is_array(data[0]) and is_scalar(data[1]):
        raise ValueError(
            "`data`: expected as many targets as samples, got one number; of a single sample make "
            "a batch, (x[None], y[None])"
        )


def _are_inputs_alone(data: Any) -> bool:
    if is_array(data):
        return True
    is_call = isinstance(data, tuple) and len(data) != 2
    return is_call and all(map(is_array, data)) and len(data) > 0


def _are_several_targets(data: Any, inputs: Any, targets: Any, *, needs_targets: bool) -> bool:
    """Tell whether a nest is the targets of the first thing, which is no batch by itself."""
    if not isinstance(targets, Mapping | list | tuple) or not len(targets) or are_numbers(targets):
        return False
    if is_array(inputs):
        return needs_targets or isinstance(data, tuple)
    is_nest = isinstance(inputs, Mapping | list | tuple)
    return isinstance(data, tuple) and is_nest and not _are_two_batches(inputs, targets)


def _are_two_batches(first: Any, second: Any) -> bool:
    """Tell whether two nests may be batches of one source, each with its targets."""
    nests = (first, second)
    if not all(map(is_pair, nests)):
        has_labels = [
            isinstance(n, Mapping) and any(map(n.__contains__, LABEL_NAMES)) for n in nests
        ]
        return any(has_labels)
    pairs = zip(first, second, strict=True)
    return all(_describe_form(one) == _describe_form(other) for one, other in pairs)


def _describe_form(nest: Any) -> Any:
    """What batches of one source have in common: types, and the number of axes of arrays."""
    if isinstance(nest, Tensor | np.ndarray):
        return str(nest.dtype), nest.ndim
    return type(nest)
