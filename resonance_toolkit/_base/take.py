import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from resonance_toolkit._base.preserving import preserving_rng

Batch: TypeAlias = tuple[Any, Any]
Batches: TypeAlias = list[Batch]


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
    batch_size: int = 100,
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
        batch_size: Samples in a batch; the last may have fewer.

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
    _check_positive("samples", samples)
    _check_positive("batch_size", batch_size)
    device = device_of(model) if model is not None else None
    with preserving_rng(), _own_generators(data):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (augmentation draws from the old generator)
        torch.manual_seed(seed)
        inputs, targets = _join(_draw(data, samples, seed, batch_size), samples)
    count = len(tree_leaves(inputs)[0])
    if samples is not None and count < samples and not isinstance(samples, AtMost):
        warnings.warn(
            f"`samples`: up to {samples} are drawn, data has {count}: all used", stacklevel=3
        )
    if device is not None:
        inputs, targets = _to((inputs, targets), device)
    return [_rows((inputs, targets), i, i + batch_size) for i in range(0, count, batch_size)]


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
        rows = torch.tensor(_choose(len(x), samples, seed), dtype=torch.long)
        return iter([(x[rows.to(x.device)], y[rows.to(y.device)])])
    if isinstance(data, DataLoader):
        if _is_plain(data):
            collate: Callable[[list[Any]], Any] = data.collate_fn
            return _collated(data.dataset, samples, seed, batch_size, collate)
        return _first(data, samples)
    if isinstance(data, IterableDataset):
        return _first(DataLoader(data, batch_size=batch_size), samples)
    if isinstance(data, Dataset) and _is_map_style(data):
        return _collated(data, samples, seed, batch_size, default_collate)
    if isinstance(data, list | tuple):
        return _first(data, samples)
    raise TypeError(
        "`data`: expected (x, y) tensors, a Dataset, a DataLoader or a list of batches, got "
        f"{type(data).__name__}"
    )


def _choose(available: int, samples: int | None, seed: int) -> list[int]:
    if samples is None or samples >= available:
        return list(range(available))
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return sorted(order[:samples].tolist())


def _collated(
    dataset: Any,
    samples: int | None,
    seed: int,
    batch_size: int,
    collate: Callable[[list[Any]], Any],
) -> Iterator[Batch]:
    rows = iter(_choose(len(dataset), samples, seed))
    while chosen := list(islice(rows, batch_size)):
        yield _pair(collate([dataset[row] for row in chosen]))


def _first(batches: Iterable[Any], samples: int | None) -> Iterator[Batch]:
    seen = 0
    for batch in batches:
        if samples is not None and seen >= samples:
            return
        pair = _pair(batch)
        seen += len(tree_leaves(pair[0])[0])
        yield pair


def _join(batches: Iterable[Batch], samples: int | None) -> Batch:
    pieces = list(batches)
    if not pieces or not len(tree_leaves(pieces[0][0])[0]):
        raise ValueError("`data`: expected at least one sample, got none")
    if len(pieces) == 1:
        return _rows(pieces[0], 0, samples)
    try:
        whole = tree_map(lambda *leaves: torch.cat(leaves), *pieces)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            "`data`: expected batches that can be joined, with samples of one shape (pad texts of "
            f"unequal length, their targets with -100): {error}"
        ) from error
    return _rows(whole, 0, samples)


def _pair(batch: Any) -> Batch:
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


def _rows(pair: Batch, start: int, stop: int | None) -> Batch:
    inputs, targets = tree_map(lambda leaf: leaf[start:stop], pair)
    return inputs, targets


def _to(pair: Batch, device: torch.device) -> Batch:
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
    batches, sampler = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or batches.sampler is not sampler:
        return False
    if isinstance(sampler, RandomSampler):
        whole = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    else:
        whole = isinstance(sampler, SequentialSampler)
    return whole and _is_map_style(loader.dataset)


def _is_map_style(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"`{name}`: expected a whole number of at least 1, got {value!r}")


@contextmanager
def _own_generators(data: Any) -> Iterator[None]:
    """Give the generators that a loader carries their states back."""
    owners = (data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
