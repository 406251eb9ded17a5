"""Where samples come from: arrays, datasets, loaders, streams and lists of batches.

`draw_batches` turns each of them into pairs `(inputs, targets)` that hold the samples wanted:
chosen by seed where samples have numbers, else the first ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from resonance_toolkit._base.call_model import keywords_of_forward
from resonance_toolkit._base.data.forms import (
    LABEL_NAMES,
    Batch,
    are_numbers,
    as_pair,
    index_rows,
    is_array,
    is_pair,
    is_scalar,
)
from resonance_toolkit._base.data.language_models import (
    are_inputs_themselves,
    predicts_next_token,
    shift_labels,
    with_decoder_inputs,
)
from resonance_toolkit._base.facts import count_samples, floating_dtype_of

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Request:
    """What is asked of a source.

    `samples`: how many, or None for all. `batch_size`: how many to collate at a time.
    `model`: for whom, if it is known. `has_loss`: whether a loss of the user's reads the targets.
    """

    samples: int | None
    seed: int
    batch_size: int
    needs_targets: bool = True
    model: nn.Module | None = None
    has_loss: bool = False

    def choose_rows(self, available: int) -> list[int]:
        """Draw sample numbers without replacement, in the order of the data."""
        if self.samples is None or self.samples >= available:
            return list(range(available))
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(available, generator=generator, device="cpu")
        return sorted(order[: self.samples].tolist())

    def understand(self, batch: Any) -> Batch:
        """Make a pair of a batch, as the model would read it."""
        if self.model is None:
            return as_pair(batch, needs_targets=self.needs_targets)

        is_mapping = isinstance(batch, Mapping)
        if is_mapping:
            batch = _drop_columns(batch, self.model)
        inputs, targets = as_pair(
            batch,
            needs_targets=self.needs_targets,
            numpy_dtype=floating_dtype_of(self.model),
        )

        if not isinstance(targets, Tensor):
            return inputs, targets

        # Labels in the model's own mapping are read as its own loss would. Those in a pair are
        # taken at their word, position by position, unless they are the model's very inputs: to
        # copy these is no task that anybody has.
        if is_mapping:
            inputs = with_decoder_inputs(self.model, inputs, targets)
        is_to_shift = is_mapping or (not self.has_loss and are_inputs_themselves(inputs, targets))
        if is_to_shift and predicts_next_token(self.model) and targets.dim() == 2:
            targets = shift_labels(targets)
        return inputs, targets


def draw_batches(data: Any, request: Request) -> Iterator[Batch]:
    """Yield pairs that hold at least the samples wanted.

    Raises:
        TypeError: If `data` is nothing that can be read, or not twice.
    """
    if not request.needs_targets and _may_be_two_batches(data):
        raise TypeError(
            "`data`: a list of two arrays of one form could be two batches or a pair; give the "
            "tuple (inputs, targets), or the batches as [(x1, None), (x2, None)]"
        )
    if _are_splits(data):
        raise TypeError(
            f"`data`: expected one dataset, got a {type(data).__name__} of {', '.join(data)}; "
            f"choose one, such as data[{next(iter(data), 'train')!r}]"
        )
    if is_whole_batch(data, needs_targets=request.needs_targets):
        pair = request.understand(data)
        rows = torch.tensor(request.choose_rows(count_samples(pair)), dtype=torch.long)
        return iter([(index_rows(pair[0], rows), index_rows(pair[1], rows))])

    if isinstance(data, DataLoader):
        if _is_plain(data):
            collate: Collate = data.collate_fn
            return _collate_rows(data.dataset, collate, request)
        return _first_batches(data, request)

    if isinstance(data, IterableDataset) or _is_foreign_stream(data):
        return _first_batches(_collate_stream(data, request), request)
    if isinstance(data, type):
        raise TypeError(f"`data`: expected data, got the class {data.__name__}: call it first")
    if isinstance(data, list | tuple):
        if _are_single_samples(data):
            return _collate_rows(data, collate_items, request)
        return _first_batches(data, request)
    if _is_map_style(data):
        return _collate_rows(data, collate_items, request)

    if isinstance(data, Iterator):
        raise TypeError(
            f"`data`: expected something that can be read twice, got {type(data).__name__}; give a "
            "list of its batches, list(...), or what it was made from"
        )
    if isinstance(data, Iterable) and not isinstance(data, Tensor | np.ndarray | str | bytes):
        return _first_batches(data, request)
    raise TypeError(
        "`data`: expected (x, y) tensors, a Dataset, a DataLoader or a list of batches, got "
        f"{type(data).__name__}"
    )


def is_whole_batch(data: Any, *, needs_targets: bool = True) -> bool:
    """Tell whether data is one batch with all its samples, not a source of batches.

    Of two things in a tuple or list, the second decides: an array is the targets of the first; a
    tuple or mapping is a second batch. Where targets are not needed, None may stand for them, and
    an array, or a tuple of one or of more than two arrays, is inputs alone.
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
    are_targets = is_array(targets) or are_numbers(targets)
    return are_targets and not isinstance(inputs, str | bytes) and not is_scalar(inputs)


def _are_single_samples(items: Any) -> bool:
    """Tell whether a list holds samples, not batches: each has one number for a target."""

    def is_sample(item: Any) -> bool:
        if isinstance(item, Mapping):
            return any(is_scalar(item.get(name)) for name in LABEL_NAMES)
        return is_pair(item) and is_scalar(item[1]) and not is_scalar(item[0])

    return len(items) > 0 and all(map(is_sample, items))


def _are_splits(data: Any) -> bool:
    """Tell whether data is a mapping of whole datasets, as a `DatasetDict` of Hugging Face."""
    return isinstance(data, Mapping) and any(
        hasattr(value, "__getitem__") and hasattr(value, "column_names") for value in data.values()
    )


def _may_be_two_batches(data: Any) -> bool:
    if not isinstance(data, list) or len(data) != 2 or not all(map(is_array, data)):
        return False
    first, second = data
    are_alike = first.shape[1:] == second.shape[1:] and first.dtype == second.dtype
    return bool(are_alike and first.ndim > 1)


def _are_inputs_alone(data: Any) -> bool:
    if is_array(data):
        return True
    is_call = isinstance(data, tuple) and len(data) != 2
    return is_call and all(map(is_array, data)) and len(data) > 0


def collate_items(items: list[Any]) -> Any:
    """Stack samples into a batch, as torch does; lists of numbers in a mapping are vectors.

    Raises:
        ValueError: If samples have unequal lengths.
        TypeError: If they are pictures, not yet tensors.
    """
    _refuse_pictures(items[0])
    if not isinstance(items[0], Mapping):
        return default_collate(items)
    return {name: _stack_values([item[name] for item in items], name) for name in items[0]}


def _refuse_pictures(item: Any) -> None:
    values = item.values() if isinstance(item, Mapping) else item
    values = values if isinstance(values, Iterable) else ()
    if any(type(value).__module__.startswith("PIL.") for value in values):
        raise TypeError(
            "`data`: expected tensors, got PIL images; have the dataset turn them into tensors, "
            "by a transform such as torchvision.transforms.ToTensor()"
        )


def _drop_columns(batch: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Leave out what a model's forward does not take, as the Trainer of transformers does."""
    keywords = keywords_of_forward(model)
    if keywords is None:
        # It takes any keyword: only what can be no argument of a model goes.
        return {name: value for name, value in batch.items() if not _is_text(value)}

    if keywords and not keywords & set(batch):
        raise TypeError(
            "`data`: expected columns that the model's forward takes "
            f"({', '.join(sorted(keywords))}), got {', '.join(map(str, batch))}; rename them, or "
            "give pairs (inputs, targets)"
        )
    names = keywords.union(LABEL_NAMES)
    return {name: value for name, value in batch.items() if name in names}


def _is_text(value: Any) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, str | bytes)


def _stack_values(values: list[Any], name: str) -> Any:
    # Text and other things without numbers: refused later, if the model is to get them.
    if isinstance(values[0], str | bytes | Mapping) or values[0] is None:
        return values

    try:
        return torch.stack([torch.as_tensor(np.asarray(value)) for value in values])
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"`data` at {name!r}: expected samples of one shape, got several; pad them, such as by "
            f"a DataLoader with a collate_fn ({error})"
        ) from error


def _collate_rows(dataset: Any, collate: Collate, request: Request) -> Iterator[Batch]:
    rows = request.choose_rows(len(dataset))
    for start in range(0, len(rows), request.batch_size):
        items = [dataset[row] for row in rows[start : start + request.batch_size]]
        yield request.understand(collate(items))


def _collate_stream(dataset: Iterable[Any], request: Request) -> Iterator[Any]:
    """Collate a stream piece by piece, reading no more of it than is wanted."""
    items = islice(dataset, request.samples)
    while piece := list(islice(items, request.batch_size)):
        yield collate_items(piece)


def _first_batches(batches: Iterable[Any], request: Request) -> Iterator[Batch]:
    n_samples = 0

    for batch in batches:
        if request.samples is not None and n_samples >= request.samples:
            return
        pair = request.understand(batch)
        n_samples += count_samples(pair)
        yield pair


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Tell whether every sample of the dataset has the same chance in a loader."""
    batch_sampler = loader.batch_sampler
    sampler = loader.sampler
    if type(batch_sampler) is not BatchSampler or batch_sampler.sampler is not sampler:
        return False

    if isinstance(sampler, RandomSampler):
        covers_all = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    else:
        covers_all = isinstance(sampler, SequentialSampler)
    return covers_all and _is_map_style(loader.dataset)


def _is_map_style(dataset: Any) -> bool:
    is_array_like = isinstance(dataset, Tensor | np.ndarray | str | bytes)
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not is_array_like


def _is_foreign_stream(data: Any) -> bool:
    """Tell whether data is a streamed dataset of Hugging Face, which yields single samples."""
    return any(
        base.__module__.startswith("datasets.") and base.__name__ == "IterableDataset"
        for base in type(data).__mro__
    )
