"""Data of any kind, as fixed batches: drawn from a source, joined, and cut to size."""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only, tree_structure
from torch.utils.data import DataLoader

from resonance_toolkit._base.checks import check_whole
from resonance_toolkit._base.data.forms import Batch, Batches, check_finite_targets, tensors_in
from resonance_toolkit._base.data.sources import Request, draw_batches
from resonance_toolkit._base.devices import device_of, devices_of
from resonance_toolkit._base.facts import count_samples
from resonance_toolkit._base.preserving import preserving_rng, seed_generators
from resonance_toolkit._base.showing import warn_user

# Samples that are collated at a time where the caller wants all in one batch: a stream must be read
# in pieces, since its length is unknown.
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
    needs_targets: bool = True,
    has_loss: bool = False,
) -> Batches:
    """Draw samples once, as fixed batches that are the same in every later pass.

    From arrays, a Dataset or a plain DataLoader, the samples are drawn without replacement, by
    `seed` alone, and kept in the order of the data. From a loader with a sampler of its own, a
    stream or a list of batches, the first samples are taken. `seed` also determines random
    augmentation. The global random state and a loader's own generator are not touched.

    Args:
        data: `(inputs, targets)`, or a mapping with `labels` (or `label`, `targets`); or a source
            of these: a Dataset, an IterableDataset, a dataset of Hugging Face, a DataLoader, a list
            of batches, or of single samples if the target of each is one number. Inputs are a
            tensor or numpy array, a tuple of them (passed to the model as positional arguments) or
            a mapping (passed as keywords). The first axis is always the samples.
        samples: How many to draw; None takes all. If there are fewer, all are used, with a warning
            unless the number is the default or another `AtMost`.
        seed: Determines which samples are drawn.
        model: Batches are moved to the device of its parameters, numpy inputs get their dtype, and
            columns that its `forward` does not take are left out. `labels` in a mapping are
            understood as by the model's own loss: in a causal language model, one position ahead.
            So are targets in a pair that equal the input tokens, unless `has_loss`.
        batch_size: Samples in a batch; the last batch may have fewer. None puts all samples of the
            same shape into one batch.
        needs_targets: If False, inputs may come without targets, which are then None. So may a
            tuple of one array, or of more than two (positional arguments). Two arrays are still
            understood as a pair: write `((x1, x2), None)` for two arguments.
        has_loss: Whether the user passed a loss, which then defines what the targets mean.

    Returns:
        Pairs `(inputs, targets)`, with mappings as dicts. Batches of unequal shape, such as texts
        padded to different lengths, are not merged.

    Raises:
        ValueError: If there is no sample, targets are NaN or infinite, or `samples` or
            `batch_size` is below 1.
        TypeError: If `data` is none of the above.

    Examples:
        >>> x = torch.arange(6.0)
        >>> [inputs.tolist() for inputs, _ in take((x, x), samples=None, batch_size=4)]
        [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
        >>> take({"input_ids": x[:2], "labels": x[:2]}, samples=None)
        [({'input_ids': tensor([0., 1.])}, tensor([0., 1.]))]
    """
    if samples is not None:
        check_whole("samples", samples)
    seed = check_whole("seed", seed, at_least=None)
    if batch_size is not None:
        check_whole("batch_size", batch_size)

    request = Request(
        samples,
        seed,
        batch_size or _READ_AT_A_TIME,
        needs_targets=needs_targets,
        model=model,
        has_loss=has_loss,
    )
    with _drawing_by_seed(data, seed, model):
        pieces = _join_alike(draw_batches(data, request), samples)
    if needs_targets:
        check_finite_targets(pieces)

    n_samples = sum(count_samples(piece) for piece in pieces)
    if samples is not None and n_samples < samples and not isinstance(samples, AtMost):
        warn_user(f"`samples`: up to {samples} are drawn, data has {n_samples}: all used")

    if model is not None:
        pieces = _put_beside(model, pieces)
    return [batch for piece in pieces for batch in _cut_piece(piece, batch_size)]


@contextmanager
def streaming_inputs(
    loader: DataLoader[Any], seed: int, *, model: nn.Module, batch_size: int
) -> Iterator[Iterator[Any]]:
    """Give all inputs of a loader, for one pass, batch by batch: none is kept.

    Of a plain loader these are the batches that `take` gives.

    Args:
        loader: The loader.
        seed: Determines random augmentation.
        model: Whose inputs they are.
        batch_size: Samples in a batch, at most.
    """
    request = Request(None, seed, batch_size, needs_targets=False, model=model)

    # Augmentation draws as the pass goes on: random states are given back when all is over.
    with _drawing_by_seed(loader, seed, model):
        yield (
            inputs
            for piece in draw_batches(loader, request)
            for moved_piece in _put_beside(model, [piece])
            for inputs, _ in _cut_piece(moved_piece, batch_size)
        )


@contextmanager
def _drawing_by_seed(data: Any, seed: int, model: nn.Module | None) -> Iterator[None]:
    """Let `seed` decide what is random in data; give all generators their states back."""
    devices = set() if model is None else devices_of(model)
    with preserving_rng(devices), _preserving_generators(data):
        # Augmentation may draw from any of the three.
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        seed_generators(seed, devices)
        yield


def _put_beside(model: nn.Module, pieces: list[Batch]) -> list[Batch]:
    device = device_of(model)
    if device.type != "meta" and any(tensor.is_meta for tensor in tensors_in(pieces)):
        raise ValueError(
            "`data`: expected tensors with numbers, got some on the meta device; make them on "
            f"{device.type}"
        )
    return [_map_tensors(lambda tensor: tensor.to(device), piece) for piece in pieces]


def _join_alike(batches: Iterable[Batch], samples: int | None) -> list[Batch]:
    """Join neighbours of one shape, and keep no more samples than are wanted."""
    pieces = [batch for batch in batches if count_samples(batch)]
    if not pieces:
        raise ValueError("`data`: expected at least one sample, got none")

    _check_structure(pieces)

    groups = (list(group) for _, group in groupby(pieces, key=_shapes_of_samples))
    larger_pieces = [_concatenate_pieces(group) for group in groups]
    if samples is None:
        return larger_pieces

    # The last batch of a source may hold more than are wanted.
    wanted_pieces: list[Batch] = []
    n_missing = samples
    for piece in larger_pieces:
        if n_missing > 0:
            wanted_pieces.append(_slice_piece(piece, 0, n_missing))
            n_missing -= count_samples(piece)
    return wanted_pieces


def _shapes_of_samples(piece: Batch) -> list[tuple[Any, ...]]:
    return [(tensor.shape[1:], tensor.dtype) for tensor in tensors_in(piece)]


def _check_structure(pieces: list[Batch]) -> None:
    structures = {str(tree_structure(piece)) for piece in pieces}
    if len(structures) > 1:
        raise ValueError(
            "`data`: expected batches that can be joined, all of one form, got "
            f"{' and '.join(sorted(structures))}"
        )


def _concatenate_pieces(group: list[Batch]) -> Batch:
    if len(group) == 1:
        return group[0]
    inputs, targets = tree_map(_concatenate_leaves, *group)
    return inputs, targets


def _concatenate_leaves(*leaves: Any) -> Any:
    return torch.cat(leaves) if isinstance(leaves[0], Tensor) and leaves[0].dim() else leaves[0]


def _cut_piece(piece: Batch, batch_size: int | None) -> Iterator[Batch]:
    n_samples = count_samples(piece)
    step = batch_size or n_samples
    for start in range(0, n_samples, step):
        yield _slice_piece(piece, start, start + step)


def _slice_piece(piece: Batch, start: int, stop: int | None) -> Batch:
    return _map_tensors(lambda tensor: tensor[start:stop] if tensor.dim() else tensor, piece)


def _map_tensors(change: Callable[[Tensor], Tensor], piece: Batch) -> Batch:
    inputs, targets = tree_map_only(Tensor, change, piece)
    return inputs, targets


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
