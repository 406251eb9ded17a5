"""Products of curvature matrices with vectors, by differentiating a graph twice, batch by batch.

    hessian        H v = d/dw (dL/dw . v)
    gauss-newton   G v = J' (d^2L/df^2) J v,    J = df/dw

The graph of a batch is made once. Each product differentiates it again, for all parameters or for a
block of them: then only the slopes of these are followed, and only to these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad
from torch.utils._pytree import tree_flatten, tree_unflatten

from landscape._curvature.matrix import (
    Batch,
    Block,
    CurvatureMatrix,
    check_differentiable,
    mean_loss,
)
from landscape._evaluation.objective import evaluate_on_batch
from resonance_toolkit import call_model, logits_of

# Takes a block and a vector, and gives the product of both; the vector has a tensor for each
# parameter of the block.
BatchProduct = Callable[[Block, list[Tensor]], list[Tensor]]


def batch_product(matrix: CurvatureMatrix, batch: Batch, share: float) -> BatchProduct:
    """Make the graph of one batch, ready to be differentiated.

    Args:
        matrix: Which matrix, of what.
        batch: Inputs and targets.
        share: What the batch counts in the mean.
    """
    make = _hessian_product if matrix.kind == "hessian" else _gauss_newton_product
    return make(matrix, batch, share)


def _hessian_product(matrix: CurvatureMatrix, batch: Batch, share: float) -> BatchProduct:
    params = list(matrix.params.values())
    loss = mean_loss(matrix, batch, share)
    slopes = grad(loss, params, create_graph=True, materialize_grads=True)

    def multiply(block: Block, vector: list[Tensor]) -> list[Tensor]:
        return _differentiate_along([slopes[i] for i in block], vector, [params[i] for i in block])

    return multiply


def _gauss_newton_product(matrix: CurvatureMatrix, batch: Batch, share: float) -> BatchProduct:
    params = list(matrix.params.values())
    outputs = call_model(matrix.model, batch[0])
    read_outputs, free_outputs, slopes = _differentiate_by_outputs(matrix, batch, outputs, share)

    # J v, without forward mode: J' u is linear in u, and its derivative, transposed, is J.
    dummies = [torch.zeros_like(output, requires_grad=True) for output in read_outputs]
    transposed = grad(read_outputs, params, dummies, create_graph=True, materialize_grads=True)

    def multiply(block: Block, vector: list[Tensor]) -> list[Tensor]:
        moved_outputs = _differentiate_along([transposed[i] for i in block], vector, dummies)
        curved_outputs = _differentiate_along(slopes, moved_outputs, free_outputs)
        return _differentiate_along(read_outputs, curved_outputs, [params[i] for i in block])

    return multiply


def _differentiate_along(
    outputs: Sequence[Tensor], vector: Sequence[Tensor], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """The derivative of `outputs . vector` by the inputs; the graph stays for the next product."""
    # What depends on nothing has no derivative, and autograd refuses it.
    pairs = [(o, v) for o, v in zip(outputs, vector, strict=True) if o.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]

    dependent_outputs, dependent_vector = zip(*pairs, strict=True)
    products = grad(
        dependent_outputs, inputs, dependent_vector, retain_graph=True, materialize_grads=True
    )
    return list(products)


def _differentiate_by_outputs(
    matrix: CurvatureMatrix, batch: Batch, outputs: Any, share: float
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Differentiate the loss as a function of the outputs alone.

    Returns:
        The tensors among the outputs that the loss reads, copies of them that depend on nothing,
        and the slopes of the loss at these.
    """
    # An object that torch's tools for nested tensors do not know: its logits stand for it.
    leaves, structure = tree_flatten(outputs)
    if not any(_is_differentiable(leaf) for leaf in leaves):
        leaves, structure = tree_flatten(logits_of(outputs))

    free_leaves = [
        leaf.detach().requires_grad_(True) if _is_differentiable(leaf) else leaf for leaf in leaves
    ]
    losses = evaluate_on_batch(
        matrix.objective.loss,
        "outputs",
        matrix.model,
        batch,
        tree_unflatten(free_leaves, structure),
    )

    check_differentiable(losses)
    candidates = [i for i, leaf in enumerate(leaves) if _is_differentiable(leaf)]
    slopes = grad(
        losses.mean() * share,
        [free_leaves[i] for i in candidates],
        create_graph=True,
        allow_unused=True,
    )

    # The loss reads some of the outputs; the others have no slope.
    pairs = [(i, slope) for i, slope in zip(candidates, slopes, strict=True) if slope is not None]
    return (
        [leaves[i] for i, _ in pairs],
        [free_leaves[i] for i, _ in pairs],
        [slope for _, slope in pairs],
    )


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
