"""Batches that are run together: as many samples as memory for the model's own logits allows."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from resonance_toolkit import Batches

# So many logits of the model itself are 64 MB in float32.
_LOGITS_PER_BATCH = 2**24


def cut_batches(
    pieces: Batches, n_classes: int, *, most_samples: int, batch_size: int | None = None
) -> Batches:
    """Cut pieces `(inputs, targets)` into batches; these are views, not copies.

    Args:
        pieces: Targets are of samples, `(sample,)` or numbers `(sample, class)`, or whole numbers
            of positions.
        n_classes: Logits at each position.
        most_samples: In a batch, however small their logits are.
        batch_size: Samples in a batch, whatever memory they take.
    """
    batches = []
    for inputs, targets in pieces:
        if not isinstance(targets, Tensor) or not targets.dim():
            batches.append((inputs, targets))  # to be refused by those who read targets
            continue

        n_places = 1 if targets.is_floating_point() else targets[0].numel()
        logits_per_sample = max(1, n_places * n_classes)
        step = batch_size or max(1, min(most_samples, _LOGITS_PER_BATCH // logits_per_sample))
        for start in range(0, len(targets), step):
            stop = start + step
            batches.append((slice_samples(inputs, start, stop), targets[start:stop]))
    return batches


def slice_samples(inputs: Any, start: int, stop: int) -> Any:
    """Return some samples of inputs, however nested; what has no samples stays as it is."""

    def slice_leaf(leaf: Any) -> Any:
        return leaf[start:stop] if isinstance(leaf, Tensor) and leaf.dim() else leaf

    return tree_map(slice_leaf, inputs)
