"""What a batch may look like, and what it means: always a pair `(inputs, targets)`.

Inputs are a tensor (one argument), a tuple (positional arguments) or a mapping (keywords), as
`call_model` passes them on. Every array becomes a tensor; what has no samples, such as None or a
flag for the model's forward, is passed along as it is.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from resonance_toolkit._base.facts import dtype_name

Batch: TypeAlias = tuple[Any, Any]
Batches: TypeAlias = list[Batch]

# What Hugging Face and torch users call the targets inside a mapping, the likeliest first.
LABEL_NAMES = ("labels", "label", "targets", "target")

# What a mapping may carry beside its tensors: settings of the forward call.
Setting: TypeAlias = bool | int | float | None


def as_pair(
    batch: Any, *, needs_targets: bool = True, numpy_dtype: torch.dtype | None = None
) -> Batch:
    """Understand one batch.

    Args:
        batch: A pair `(inputs, targets)`, or a mapping with `labels`.
        needs_targets: If False, inputs alone are understood, too, and targets may be None.
        numpy_dtype: What floating numpy inputs become: numpy makes float64 unasked.

    Raises:
        TypeError: If it is neither, or holds something that is not a tensor.
        ValueError: If inputs and targets have unequal numbers of samples.
    """
    if isinstance(batch, Mapping):
        inputs, targets = _split_labels(batch, needs_targets=needs_targets)
    elif is_pair(batch):
        inputs, targets = batch
    elif not needs_targets:
        inputs, targets = batch, None
    else:
        raise TypeError(_not_a_pair(batch))

    inputs = as_tensors(_read_columns(read_numbers(inputs)), numpy_dtype)
    pair = inputs, as_tensors(read_numbers(targets))
    _check_sizes(pair)
    return pair


def is_pair(batch: Any) -> bool:
    """Tell whether something is `(inputs, targets)`, whatever the inputs are."""
    return isinstance(batch, list | tuple) and len(batch) == 2


def is_array(value: Any) -> bool:
    """Tell whether something is a tensor or a numpy array with an axis."""
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0


def is_scalar(value: Any) -> bool:
    """Tell whether something is one number, as a single sample has it for a target."""
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim == 0
    return isinstance(value, int | float | np.number | np.bool_)


def are_numbers(value: Any) -> bool:
    """Tell whether something is a list of numbers, or of such lists, that is not empty."""
    if not isinstance(value, list) or not value:
        return False
    return all(is_scalar(item) or are_numbers(item) for item in value)


def read_numbers(value: Any) -> Any:
    """Return a list of numbers, or of such lists, as a tensor; all else as it is.

    Raises:
        ValueError: If the lists have unequal lengths.
    """
    if not are_numbers(value):
        return value
    try:
        return torch.tensor(value)
    except ValueError as error:
        raise ValueError(
            "`data`: expected lists of equal length, got several lengths; pad them"
        ) from error


def _read_columns(inputs: Any) -> Any:
    """Read the lists of numbers in a mapping, such as tokenizers and datasets give it.

    Not what has another length than the tensors beside it: a setting of the call, such as a size.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    sizes = {len(value) for value in inputs.values() if is_array(value)}
    sizes = sizes or {len(value) for value in inputs.values() if are_numbers(value)}
    return {
        name: read_numbers(value) if are_numbers(value) and sizes == {len(value)} else value
        for name, value in inputs.items()
    }


def as_tensors(nest: Any, numpy_dtype: torch.dtype | None = None) -> Any:
    """Return nested tuples, lists and mappings with every array as a tensor.

    Mappings become plain dicts, so that torch's tools for nested tensors see into them.

    Raises:
        TypeError: If there is something else, such as text, inside.
    """
    if isinstance(nest, Mapping):
        return {name: _as_tensor_at(name, value, numpy_dtype) for name, value in nest.items()}
    if isinstance(nest, list | tuple):
        return tuple(as_tensors(value, numpy_dtype) for value in nest)
    if isinstance(nest, np.ndarray) and nest.dtype.kind in "biuf":
        tensor = torch.from_numpy(np.ascontiguousarray(nest))
        return tensor.to(numpy_dtype) if numpy_dtype and nest.dtype.kind == "f" else tensor
    if isinstance(nest, Tensor) and nest.layout is not torch.strided:
        raise ValueError(
            f"`data`: expected dense tensors, of which samples can be drawn, got {nest.layout}; "
            "give x.to_dense()"
        )
    if isinstance(nest, Tensor | Setting):
        return nest
    raise TypeError(f"`data`: expected batches of tensors, got {type(nest).__name__}")


def _as_tensor_at(name: str, value: Any, numpy_dtype: torch.dtype | None) -> Any:
    try:
        return as_tensors(value, numpy_dtype)
    except TypeError:
        raise TypeError(
            f"`data` at {name!r}: expected a tensor, got {_kind_of(value)}; remove the column, or "
            "turn it into numbers"
        ) from None


def _kind_of(value: Any) -> str:
    if isinstance(value, list | tuple) and value:
        return f"{type(value).__name__} of {type(value[0]).__name__}"
    return type(value).__name__


def _split_labels(batch: Mapping[str, Any], *, needs_targets: bool) -> Batch:
    name = next((name for name in LABEL_NAMES if batch.get(name) is not None), None)

    if name is None:
        if not needs_targets:
            return batch, None
        raise TypeError(
            f"`data`: expected a mapping with {' or '.join(map(repr, LABEL_NAMES[:3]))}, got the "
            f"keys {', '.join(map(str, batch))}; give pairs (inputs, targets) instead"
        )
    return {key: value for key, value in batch.items() if key != name}, batch[name]


def _not_a_pair(batch: Any) -> str:
    if isinstance(batch, list | tuple):
        cure = ""
        if len(batch) > 2:
            cure = "; put several inputs into a tuple of their own, ((x1, x2), y)"
        return (
            f"`data`: expected pairs (inputs, targets), got a {type(batch).__name__} of length "
            f"{len(batch)}{cure}"
        )
    return (
        f"`data`: expected pairs (inputs, targets), got a {type(batch).__name__}; a mapping with "
        "'labels' will do, too"
    )


def _check_sizes(pair: Batch) -> None:
    sizes = [len(tensor) for tensor in tensors_in(pair) if tensor.dim()]
    if not sizes:
        raise TypeError("`data`: expected batches of tensors with samples first, got none")
    if len(set(sizes)) > 1:
        listing = ", ".join(str(size) for size in dict.fromkeys(sizes))
        raise ValueError(
            f"`data`: expected as many targets as inputs, got {listing}; samples come first, and "
            "a list is one of batches: of single samples make a batch, torch.stack(samples)"
        )


def check_finite_targets(batches: Batches) -> None:
    """Refuse targets with NaN or infinity, whatever loss will see them: its mean would be neither.

    Raises:
        ValueError: If there are some.
    """
    first_sample = 0
    for inputs, targets in batches:
        for tensor in tensors_in(targets):
            if not tensor.is_floating_point() or tensor.is_meta or bool(tensor.isfinite().all()):
                continue
            rows = tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)
            sample = int((~rows.isfinite()).any(1).nonzero()[0])
            number = rows[sample][~rows[sample].isfinite()][0].item()
            raise ValueError(
                "`data`: expected targets that are numbers, got "
                f"{'NaN' if math.isnan(number) else number} in sample {first_sample + sample}; "
                "where a target is missing, put a number and give a mask beside it: targets "
                "(y.nan_to_num(), mask) and a `loss` that leaves out what is masked"
            )
        first_sample += len(tensors_in((inputs, targets))[0])


def check_no_nan(batches: Iterable[Batch]) -> None:
    """Refuse inputs with NaN, for a verb that found a loss to be NaN and looks for the cause.

    To look at all inputs takes its time: not to be asked without need.

    Raises:
        ValueError: If there are some.
    """
    first_sample = 0
    for inputs, _ in batches:
        tensors = [tensor for tensor in tensors_in(inputs) if tensor.dim()]
        for tensor in tensors:
            has_nan = tensor.isnan().reshape(len(tensor), -1).any(1)
            if bool(has_nan.any()):
                sample = first_sample + int(has_nan.nonzero()[0])
                raise ValueError(
                    f"`data`: expected inputs that are numbers, got NaN in sample {sample}"
                )
        first_sample += len(tensors[0])


def tensors_in(nest: Any) -> list[Tensor]:
    """List the tensors in nested tuples, lists and mappings."""
    if isinstance(nest, Tensor):
        return [nest]
    if isinstance(nest, Mapping):
        return [tensor for value in nest.values() for tensor in tensors_in(value)]
    if isinstance(nest, list | tuple):
        return [tensor for value in nest for tensor in tensors_in(value)]
    return []


def describe_tensors(nest: Any) -> str:
    """Say which tensors a nest holds.

    Examples:
        >>> describe_tensors({"x": torch.ones(3, 2), "flag": True})
        'float32 (3, 2)'
    """
    parts = [f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}" for tensor in tensors_in(nest)]
    return ", ".join(parts) or "no tensor"


def index_rows(nest: Any, rows: Tensor) -> Any:
    """Pick samples, by number, from every tensor of a nest."""
    if isinstance(nest, Tensor):
        return nest[rows.to(nest.device)] if nest.dim() else nest
    if isinstance(nest, Mapping):
        return {name: index_rows(value, rows) for name, value in nest.items()}
    if isinstance(nest, tuple):
        return tuple(index_rows(value, rows) for value in nest)
    return nest
