"""The fixed samples on which every point is evaluated, and how they are cut into batches.

Samples of unequal shape, such as texts padded to unequal lengths, cannot be joined: they stay apart
as pieces, and each piece is cut into batches by itself.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.objective import Measures, Objective, make_objective
from landscape._evaluation.trial import try_out
from resonance_toolkit import (
    AtMost,
    Batches,
    ClassLoss,
    count_samples,
    device_of,
    leave_out_uncounted,
    take,
)

# Samples compared between two passes over the data.
_COMPARED_SAMPLES = AtMost(32)

# Samples that a model is tried out on before it sees all of them.
FEW_SAMPLES = 2

# Bytes of the largest activation: a few of them still fit a CPU's shared cache. Measured on two
# cores, 500 images: 50 to 100 at a time take 0.45 to 0.75 of the time of 500.
_WORKING_SET = 8 * 2**20


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
    if batch_size is None and (objective.is_weighted or not trial.is_divisible):
        batch_size = max(count_samples(inputs) for inputs, _ in pieces)
    elif batch_size is None:
        budget = _WORKING_SET if device_of(model).type == "cpu" else 64 * _WORKING_SET
        batch_size = max(8, budget // max(trial.largest_activation, 1))

    batches = [batch for piece in pieces for batch in _cut(piece, batch_size)]
    return FixedSamples(trial.objective, batches, trial.is_divisible)


def draw_samples(
    model: nn.Module, measures: Measures, request: SampleRequest
) -> tuple[Objective, Batches]:
    """Draw the samples once, on the model's device; refuse data that change between passes.

    Returns:
        What is measured, as the targets ask for it, and pieces of samples of one shape.
    """
    data, seed = request.data, request.seed
    pieces = take(data, request.samples, seed, model=model, batch_size=None)

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


def _cut(piece: tuple[Any, Any], batch_size: int) -> Batches:
    # Equal to within one sample, rather than full batches and a small last one.
    n_samples = count_samples(piece)
    n_batches = math.ceil(n_samples / batch_size)
    edges = [n_samples * i // n_batches for i in range(n_batches + 1)]
    return [slice_samples(piece, begin, end) for begin, end in pairwise(edges)]


def _numbers_per_sample(piece: tuple[Any, Any]) -> int:
    inputs, _ = piece
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() for tensor in tensors) // count_samples(piece)
