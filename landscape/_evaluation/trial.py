"""A model tried out on a few samples: does it run, how large do its activations get?

What a user gets wrong shows here, before any work: inputs of another form, classes out of range,
shapes that fit no loss.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from landscape._evaluation.objective import Objective, evaluate_on_batch
from resonance_toolkit import call_model, count_samples, evaluating, preserving

Batch = tuple[Any, Any]

# What a model raises for inputs that it cannot work with. Not memory that runs out.
_FAILURES = (RuntimeError, TypeError, IndexError)


@dataclass(frozen=True)
class Trial:
    """What was learnt.

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
        return _run(model, objective, few, is_divisible=True)
    except torch.OutOfMemoryError:
        raise
    except (*_FAILURES, ValueError):
        pass

    try:
        return _run(model, objective, most, is_divisible=False)
    except torch.OutOfMemoryError:
        raise
    except _FAILURES as error:
        raise ValueError(_failure(error, objective, most)) from error


def _run(model: nn.Module, objective: Objective, batch: Batch, *, is_divisible: bool) -> Trial:
    inputs, targets = batch
    n_samples = count_samples(batch)
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

        if objective.kind == "closure":
            evaluate_on_batch(objective.loss, "closure", model, batch, None)
            return Trial(objective, is_divisible, largest)

        outputs = call_model(model, inputs)

    # A loss of the user's may do anything; ours tell whether outputs and targets fit.
    if objective.finds_logits:
        objective = objective.settle_targets(outputs, targets)
        evaluate_on_batch(objective.loss, "outputs", model, batch, outputs)
    return Trial(objective, is_divisible, largest)


def _failure(error: Exception, objective: Objective, batch: Batch) -> str:
    inputs, _ = batch
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    listing = ", ".join(str(shape) for shape in shapes)
    called = "`loss`: it fails" if objective.kind == "closure" else "`data`: the model fails"
    return (
        f"{called} on {count_samples(batch)} samples, inputs of shape {listing}: {error}. A tuple "
        "of inputs is positional arguments, a mapping keywords; where samples depend on each "
        "other, as nodes of a graph do, give all of them: samples=None, and no `batch_size`"
    )
