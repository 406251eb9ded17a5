from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from resonance import preserving_rng

# Nodes of a graph whose inside autograd does not show.
_COMPILED = "CompiledFunction"
_REENTRANT = "CheckpointFunctionBackward"


def reached_leaves(loss: Tensor) -> tuple[set[int], bool]:
    """Walk a loss's graph: the ids of the leaves it can reach, and whether a part is compiled.

    Raises:
        ValueError: If the graph runs through a reentrant checkpoint, which hides its leaves.
    """
    leaves: set[int] = set()
    compiled = False
    stack = [loss.grad_fn] if loss.grad_fn is not None else []
    seen = set(stack)
    while stack:
        node = stack.pop()
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            leaves.add(id(node.variable))
        elif kind == _REENTRANT:
            raise ValueError(
                "losses: reentrant activation checkpointing hides the gradients of single "
                "losses; use `torch.utils.checkpoint.checkpoint(..., use_reentrant=False)`"
            )
        elif kind.startswith(_COMPILED):
            compiled = True
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return leaves, compiled


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Give buffers and random states back after a further backward pass.

    Activation checkpointing runs parts of the forward again in each pass: batch norm would count
    the batch once more, and dropout may draw once more.
    """
    buffers = [(buffer, buffer.detach().clone(), buffer._version) for buffer in model.buffers()]
    with preserving_rng({p.device for p in model.parameters()}):
        try:
            yield
        finally:
            for buffer, copy, version in buffers:
                if buffer._version != version:
                    # Through `.data`: the graph still to be differentiated sees no new version.
                    buffer.data.copy_(copy)
