"""The fixed samples on which every point is evaluated, and how they are cut into batches."""

import math
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.objective import Objective
from resonance_toolkit import (
    AtMost,
    Batches,
    count_samples,
    device_of,
    evaluating,
    preserving,
    take,
)

# Samples compared between two passes over the data.
_COMPARED_SAMPLES = AtMost(32)

# Bytes of the largest activation: a few of them still fit a CPU's shared cache. Measured on two
# cores, 500 images: 50 to 100 at a time take 0.45 to 0.75 of the time of 500.
_WORKING_SET = 8 * 2**20


def fixed_samples(
    model: nn.Module, data: Any, objective: Objective, samples: int | None, seed: int
) -> Batches:
    """Draw the samples once, on the model's device; refuse data that change between passes."""
    batches = take(data, samples, seed, model=model)

    # Tensors and lists cannot change; a dataset may augment, a loader may shuffle.
    if not isinstance(data, list | tuple):
        first, second = (fingerprint(take(data, _COMPARED_SAMPLES, seed)) for _ in range(2))
        refuse_changes(first, second)

    refuse_ignored([targets for _, targets in batches], objective)
    return batches


def refuse_ignored(targets: Any, objective: Objective) -> None:
    """Raise for targets that the loss leaves out: each batch would count by its samples instead."""
    ignored = objective.ignored_target
    if ignored is None:
        return

    for leaf in tree_leaves(targets):
        is_whole = isinstance(leaf, Tensor) and not leaf.is_floating_point()
        if is_whole and ignored in leaf.long():
            raise ValueError(
                f"`data`: {objective.loss_name} ignores the targets {ignored}; drop them, or give "
                "a `loss` of (outputs, targets) with one value per sample"
            )


def refuse_changes(first: object, second: object) -> None:
    """Raise if fingerprints of two passes over the same data differ."""
    if first != second:
        raise ValueError(
            "`data`: gives other samples on a second pass, so points would not be comparable; "
            "give tensors, or data without shuffling or augmentation of its own"
        )


def cut_into_batches(
    model: nn.Module, batches: Batches, batch_size: int | None, *, keep_together: bool = False
) -> Batches:
    """Cut the samples into equal batches whose activations stay in the cache of a CPU.

    Args:
        model: Called with two samples, to see how large its activations are.
        batches: The samples.
        batch_size: Samples at a time, at most; None chooses.
        keep_together: Choose one batch, for a loss whose mean weighs samples.
    """
    inputs, targets = batches[0]
    if len(batches) > 1:
        inputs, targets = tree_map(lambda *leaves: torch.cat(leaves), *batches)
    n_samples = count_samples(inputs)

    if batch_size is None and keep_together:
        batch_size = n_samples
    elif batch_size is None:
        budget = _WORKING_SET if device_of(model).type == "cpu" else 64 * _WORKING_SET
        batch_size = max(8, budget // max(_largest_activation(model, inputs), 1))

    # Equal to within one sample, rather than full batches and a small last one.
    n_batches = math.ceil(n_samples / batch_size)
    edges = [n_samples * i // n_batches for i in range(n_batches + 1)]
    return [slice_samples((inputs, targets), begin, end) for begin, end in pairwise(edges)]


def slice_samples(tree: Any, begin: int, end: int) -> Any:
    """Some samples of nested tensors."""
    return tree_map(lambda leaf: leaf[begin:end], tree)


def _largest_activation(model: nn.Module, inputs: Any) -> int:
    """Bytes per sample of the largest tensor that a layer gives."""
    few_inputs = slice_samples(inputs, 0, 2)
    n_samples = count_samples(few_inputs)
    largest = 0

    def note_size(_module: nn.Module, _args: Any, output: Any) -> None:
        nonlocal largest
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor):
                largest = max(largest, leaf.numel() * leaf.element_size() // n_samples)

    with ExitStack() as stack:
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        for module in model.modules():
            stack.enter_context(module.register_forward_hook(note_size))
        model(few_inputs)

    return largest
