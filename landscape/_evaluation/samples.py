"""The fixed samples on which every point is evaluated: drawn, tried out, and cut into batches.

Samples of unequal shape, such as texts padded to unequal lengths, cannot be joined: they stay apart
as pieces, and each piece is cut into batches by itself. Before any work the model is tried out on a
few of them, where what a user gets wrong shows: inputs of another form, classes out of range,
shapes that fit no loss.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.objective import (
    Measures,
    Objective,
    evaluate_on_batch,
    make_objective,
)
from resonance_toolkit import (
    AtMost,
    Batches,
    ClassLoss,
    FailedPassError,
    call_model,
    count_samples,
    device_of,
    evaluating,
    leave_out_uncounted,
    preserving,
    take,
)

Batch: TypeAlias = tuple[Any, Any]

# Samples compared between two passes over the data.
_COMPARED_SAMPLES = AtMost(32)

# Samples that a model is tried out on before it sees all of them.
FEW_SAMPLES = 2

# Bytes of the largest activation: a few of them still fit a CPU's shared cache. Measured on two
# cores, 500 images: 50 to 100 at a time take 0.45 to 0.75 of the time of 500.
_WORKING_SET = 8 * 2**20


# What a model raises for inputs that it cannot work with. Not memory that runs out.
_FAILURES = (RuntimeError, TypeError, IndexError)


@dataclass(frozen=True)
class SampleRequest:
    """Which samples are wanted, in the words of the verbs."""

    data: Any
    _: KW_ONLY
    samples: int | None
    seed: int
    batch_size: int | None


@dataclass(frozen=True)
class FixedSamples:
    """Batches, and what is measured on them.

    `is_divisible`: False if the model runs on whole batches alone, as it does where samples are the
    nodes of a graph.
    """

    objective: Objective
    batches: Batches
    is_divisible: bool


def fix_samples(model: nn.Module, measures: Measures, request: SampleRequest) -> FixedSamples:
    """Draw samples, try the model out on a few, and cut all of them into batches."""
    objective, pieces = draw_samples(model, measures, request)

    # The widest piece: the longest text has the largest activations.
    widest = max(pieces, key=_numbers_per_sample)
    few_samples = slice_samples(widest, 0, FEW_SAMPLES)
    most_samples = slice_samples(widest, 0, request.batch_size or count_samples(widest))
    trial = try_out(model, objective, few_samples, most_samples)

    batch_size = request.batch_size
    if batch_size is None and not trial.is_divisible:
        batch_size = max(count_samples(inputs) for inputs, _ in pieces)
    elif batch_size is None:
        budget = _WORKING_SET if device_of(model).type == "cpu" else 64 * _WORKING_SET
        batch_size = max(8, budget // max(trial.largest_activation, 1))

    batches = [batch for piece in pieces for batch in _cut(piece, batch_size)]
    return FixedSamples(trial.objective, batches, trial.is_divisible)


@dataclass(frozen=True)
class Trial:
    """What a model tried out on a few samples has shown.

    Attributes:
        objective: What is measured, with what only outputs can tell.
        is_divisible: True if the model runs on a few samples; else on all alone.
        largest_activation: Bytes per sample of the largest tensor that a layer gives.
    """

    objective: Objective
    is_divisible: bool
    largest_activation: int


def try_out(model: nn.Module, objective: Objective, few: Batch, most: Batch) -> Trial:
    """Run a model on a few samples; if it fails, on as many as it will ever see at once.

    Raises:
        ValueError: If it fails on these, too.
    """
    try:
        return _try_batch(model, objective, few, is_divisible=True)
    except torch.OutOfMemoryError:
        raise
    except (*_FAILURES, ValueError):
        pass

    try:
        return _try_batch(model, objective, most, is_divisible=False)
    except torch.OutOfMemoryError:
        raise
    except _FAILURES as error:
        raise ValueError(_describe_failure(error, objective, most)) from error


def _try_batch(
    model: nn.Module, objective: Objective, batch: Batch, *, is_divisible: bool
) -> Trial:
    inputs, targets = batch
    n_samples = count_samples(batch)
    largest = 0

    # A view of the inputs, such as flattened images, takes no memory of its own.
    input_storages = {_storage_of(leaf) for leaf in tree_leaves(inputs)} - {None}

    def note_size(_module: nn.Module, _args: Any, output: Any) -> None:
        nonlocal largest
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and _storage_of(leaf) not in input_storages:
                largest = max(largest, leaf.numel() * leaf.element_size() // n_samples)

    with ExitStack() as stack:
        stack.enter_context(preserving(model, values=False))
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.no_grad())
        for module in model.modules():
            stack.enter_context(module.register_forward_hook(note_size))

        if objective.kind == "closure":
            evaluate_on_batch(objective.loss, "closure", model, batch, None)
            return Trial(objective, is_divisible, largest)

        outputs = call_model(model, inputs)

    # A loss of the user's may do anything; ours tell whether outputs and targets fit.
    if objective.finds_logits:
        objective = objective.settle_targets(outputs, targets)
        evaluate_on_batch(objective.loss, "outputs", model, batch, outputs)
    return Trial(objective, is_divisible, largest)


def _storage_of(leaf: Any) -> int | None:
    """Where a tensor's numbers lie; None of what is none, is sparse, or wraps other tensors."""
    is_dense = type(leaf) is Tensor and leaf.layout == torch.strided
    return leaf.untyped_storage().data_ptr() if is_dense else None


def _describe_failure(error: Exception, objective: Objective, batch: Batch) -> str:
    inputs, _ = batch
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    listing = ", ".join(str(shape) for shape in shapes)
    # What `call_model` says of shapes is said here.
    cause = error.__cause__ if isinstance(error, FailedPassError) else error
    called = "`loss`: it fails" if objective.kind == "closure" else "`data`: the model fails"
    return (
        f"{called} on {count_samples(batch)} samples, inputs of shape {listing}: {cause}. "
        "Samples come first: of single samples make a batch, torch.stack(samples). A tuple of "
        "inputs is positional arguments, a mapping keywords; where samples depend on each "
        "other, as nodes of a graph do, give all of them: samples=None, and no `batch_size`"
    )


def draw_samples(
    model: nn.Module, measures: Measures, request: SampleRequest
) -> tuple[Objective, Batches]:
    """Draw the samples once, on the model's device; refuse data that change between passes.

    Returns:
        What is measured, as the targets ask for it, and pieces of samples of one shape.
    """
    data = request.data
    seed = request.seed
    has_loss = measures.loss is not None
    pieces = take(data, request.samples, seed, model=model, batch_size=None, has_loss=has_loss)

    # Tensors and lists cannot change; a dataset may augment, a loader may shuffle.
    if not isinstance(data, list | tuple | Mapping):
        first, second = (
            fingerprint(take(data, _COMPARED_SAMPLES, seed, model=model)) for _ in range(2)
        )
        refuse_changes(first, second)

    if measures.ignored_target is not None:
        pieces = leave_out_uncounted(pieces, measures.ignored_target)

    targets = [piece_targets for _, piece_targets in pieces]
    objective = make_objective(measures, targets)
    refuse_ignored(targets, measures, objective)
    return objective, pieces


def refuse_ignored(targets: Any, measures: Measures, objective: Objective) -> None:
    """Raise for positions that a loss of the user's leaves out, in a way that we cannot know."""
    ignored = measures.ignored_target
    if ignored is None or measures.loss is None or isinstance(objective.loss, ClassLoss):
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


def slice_samples(nest: Any, begin: int, end: int) -> Any:
    """Some samples of nested tensors; what has no samples, such as a setting, as it is."""

    def slice_leaf(leaf: Any) -> Any:
        return leaf[begin:end] if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return tree_map(slice_leaf, nest)


def _cut(piece: Batch, batch_size: int) -> Batches:
    # Equal to within one sample, rather than full batches and a small last one.
    n_samples = count_samples(piece)
    n_batches = math.ceil(n_samples / batch_size)
    edges = [n_samples * i // n_batches for i in range(n_batches + 1)]
    return [slice_samples(piece, begin, end) for begin, end in pairwise(edges)]


def _numbers_per_sample(piece: Batch) -> int:
    inputs, _ = piece
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() for tensor in tensors) // count_samples(piece)
