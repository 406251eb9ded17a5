"""The fixed samples on which every point is evaluated."""

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.objective import Objective
from resonance_toolkit import AtMost, Batches, take

_CHECKED = AtMost(32)  # samples compared between two passes


def fixed_samples(
    model: nn.Module, data: Any, objective: Objective, samples: int | None, seed: int
) -> Batches:
    """Draw the samples once, on the model's device; refuse data that change between passes."""
    if type(seed) is not int:
        raise ValueError(f"`seed`: expected a whole number, got {seed!r}")
    batches = take(data, samples, seed, model=model)
    if not isinstance(data, list | tuple):
        first, second = (fingerprint(take(data, _CHECKED, seed)) for _ in range(2))
        refuse_changes(first, second)
    refuse_ignored([y for _, y in batches], objective)
    return batches


def refuse_ignored(targets: Any, objective: Objective) -> None:
    """Raise for targets that the loss leaves out: each batch would count by its samples instead."""
    left_out = objective.ignored
    for leaf in tree_leaves(targets) if left_out is not None else []:
        whole = isinstance(leaf, Tensor) and not leaf.is_floating_point()
        if whole and left_out in leaf.long():
            raise ValueError(
                f"`data`: {objective.loss_name} ignores the targets {left_out}; drop them, or give "
                "a `loss` of (outputs, targets) with one value per sample"
            )


def refuse_changes(first: object, second: object) -> None:
    """Raise if fingerprints of two passes over the same data differ."""
    if first != second:
        raise ValueError(
            "`data`: gives other samples on a second pass, so points would not be comparable; "
            "give tensors, or data without shuffling or augmentation of its own"
        )
