"""Data of any kind, as fixed batches.

`take` asks `_draw` for batches that hold the samples wanted (by row number where there are rows,
else from the start), joins them, and cuts the whole into batches of the size asked for.
"""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from resonance_toolkit._base.checks import check_whole
from resonance_toolkit._base.facts import count_samples
from resonance_toolkit._base.preserving import preserving_rng

Batch: TypeAlias = tuple[Any, Any]
Batches: TypeAlias = list[Batch]

# Samples that are collated at a time where the caller wants all in one batch: an iterable dataset
# must be read in pieces, since its length is unknown.
_READ_AT_A_TIME = 100


class AtMost(int):
    """A number of samples that data may fall short of without a warning, as defaults are.

    Examples:
        >>> (batch,) = take((torch.ones(3, 1), torch.ones(3)), samples=AtMost(500))
        >>> len(batch[0])
        3
    """


def take(
    data: Any,
    samples: int | None = AtMost(500),
    seed: int = 0,
    *,
    model: nn.Module | None = None,
    batch_size: int | None = 100,
) -> Batches:
    """Draw samples once, as fixed batches that every later pass sees alike.

    From tensors, from a Dataset and from a plain DataLoader the samples are drawn without
    replacement, by `seed` alone, and kept in the order of the data. A loader with a sampler of its
    own, an IterableDataset and a list of batches give their first samples. Random augmentation
    is drawn by `seed` too. No global random state moves, nor a loader's own generator.

    Args:
        data: `(x, y)` tensors, a Dataset or DataLoader of pairs `(input, target)`, or a list of
            such batches. Inputs and targets may be nested (dicts, tuples) with the samples first.
        samples: How many to draw; None takes all. If there are fewer, all are used, with a warning
            unless the number is the default or another `AtMost`.
        seed: Decides which.
        model: Batches are put where its parameters are.
        batch_size: Samples in a batch; the last may have fewer. None puts all into one.

    Returns:
        Pairs `(inputs, targets)`.

    Raises:
        ValueError: If there is no sample, or `samples` or `batch_size` is below 1.
        TypeError: If `data` is none of the above.

    Examples:
        >>> x = torch.arange(6.0)
        >>> [inputs.tolist() for inputs, _ in take((x, x), samples=None, batch_size=4)]
        [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
    """
    if samples is not None:
        check_whole("samples", samples)
    if batch_size is not None:
        check_whole("batch_size", batch_size)

    with preserving_rng(), _preserving_generators(data):
        # Augmentation may draw from any of the three.
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed)
        pair = _join(_draw(data, samples, seed, batch_size or _READ_AT_A_TIME), samples)

    n_samples = count_samples(pair)
    if samples is not None and n_samples < samples and not isinstance(samples, AtMost):
        warnings.warn(
            f"`samples`: up to {samples} are drawn, data has {n_samples}: all used", stacklevel=3
        )

    if model is not None:
        pair = _move(pair, device_of(model))
    step = batch_size or n_samples
    return [_slice(pair, start, start + step) for start in range(0, n_samples, step)]


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter (or buffer) is; the CPU if it has none.

    Examples:
        >>> device_of(nn.Linear(1, 1))
        device(type='cpu')
    """
    tensors = chain(model.parameters(), model.buffers())
    return next((t.device for t in tensors), torch.device("cpu"))


def _draw(data: Any, samples: int | None, seed: int, batch_size: int) -> Iterator[Batch]:
    """Yield batches that hold at least the samples wanted."""
    if _is_pair_of_tensors(data):
        x, y = data
        if len(x) != len(y):
            raise ValueError(f"`data`: expected as many targets as inputs, got {len(x)}, {len(y)}")

        chosen = torch.tensor(_choose_rows(len(x), samples, seed), dtype=torch.long)
        return iter([(x[chosen.to(x.device)], y[chosen.to(y.device)])])

    if isinstance(data, DataLoader):
        if _is_plain(data):
            collate: Callable[[list[Any]], Any] = data.collate_fn
            rows = _choose_rows(_length(data.dataset), samples, seed)
            return _collate_rows(data.dataset, rows, batch_size, collate)
        return _first_batches(data, samples)

    if isinstance(data, IterableDataset):
        # No more at a time than are wanted: each may be costly to make.
        most = batch_size if samples is None else min(batch_size, samples)
        return _first_batches(DataLoader(data, batch_size=most), samples)

    if isinstance(data, Dataset) and _is_map_style(data):
        rows = _choose_rows(_length(data), samples, seed)
        return _collate_rows(data, rows, batch_size, default_collate)
    if isinstance(data, list | tuple):
        return _first_batches(data, samples)
    raise TypeError(
        "`data`: expected (x, y) tensors, a Dataset, a DataLoader or a list of batches, got "
        f"{type(data).__name__}"
    )


def _choose_rows(available: int, samples: int | None, seed: int) -> list[int]:
    if samples is None or samples >= available:
        return list(range(available))
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:samples].tolist())


def _collate_rows(
    dataset: Any, rows: list[int], batch_size: int, collate: Callable[[list[Any]], Any]
) -> Iterator[Batch]:
    for start in range(0, len(rows), batch_size):
        items = [dataset[row] for row in rows[start : start + batch_size]]
        yield _check_pair(collate(items))


def _first_batches(batches: Iterable[Any], samples: int | None) -> Iterator[Batch]:
    n_samples = 0

    for batch in batches:
        if samples is not None and n_samples >= samples:
            return
        pair = _check_pair(batch)
        n_samples += count_samples(pair)
        yield pair


def _join(batches: Iterable[Batch], samples: int | None) -> Batch:
    pieces = list(batches)
    if not pieces or not count_samples(pieces[0]):
        raise ValueError("`data`: expected at least one sample, got none")
    if len(pieces) == 1:
        return _slice(pieces[0], 0, samples)

    try:
        joined = tree_map(lambda *leaves: torch.cat(leaves), *pieces)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            "`data`: expected batches that can be joined, with samples of one shape (pad texts of "
            f"unequal length, their targets with -100): {error}"
        ) from error
    return _slice(joined, 0, samples)


def _check_pair(batch: Any) -> Batch:
    if not isinstance(batch, Sequence) or len(batch) != 2:
        size = f" of length {len(batch)}" if isinstance(batch, Sequence) else ""
        raise TypeError(
            f"`data`: expected pairs (inputs, targets), got a {type(batch).__name__}{size}"
        )

    leaves = tree_leaves(tuple(batch))
    if not leaves or not all(isinstance(leaf, Tensor) and leaf.dim() for leaf in leaves):
        kinds = sorted({type(leaf).__name__ for leaf in leaves})
        raise TypeError(f"`data`: expected batches of tensors, got {', '.join(kinds) or 'nothing'}")

    sizes = sorted({len(leaf) for leaf in leaves})
    if len(sizes) > 1:
        raise ValueError(f"`data`: expected as many targets as inputs, got {sizes} in one batch")
    return batch[0], batch[1]


def _slice(pair: Batch, start: int, stop: int | None) -> Batch:
    inputs, targets = tree_map(lambda leaf: leaf[start:stop], pair)
    return inputs, targets


def _move(pair: Batch, device: torch.device) -> Batch:
    inputs, targets = tree_map(lambda leaf: leaf.to(device), pair)
    return inputs, targets


def _is_pair_of_tensors(data: Any) -> bool:
    return (
        isinstance(data, list | tuple)
        and len(data) == 2
        and all(isinstance(part, Tensor) for part in data)
    )


def _is_plain(loader: DataLoader[Any]) -> bool:
    """Whether every sample of the dataset has the same chance in a loader."""
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
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _length(dataset: Any) -> int:
    return len(dataset)


@contextmanager
def _preserving_generators(data: Any) -> Iterator[None]:
    """Give the generators that a loader carries their states back."""
    owners = (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [
        (generator, generator.get_state())
        for generator in generators
        if isinstance(generator, torch.Generator)
    ]

    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
