"""Products of curvature matrices with vectors, from retained graphs where memory allows.

With `L` the mean loss and `f` the outputs of the model, both over the parameters,

    hessian        H v = d/dw (dL/dw . v)
    gauss-newton   G v = J' (d^2L/df^2) J v,    J = df/dw

Neither matrix is ever written out. The graph of each batch is made once and differentiated for each
product, or, if all graphs take too much memory, made anew for each.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten
from tqdm import tqdm

from landscape._directions.parameters import Params
from landscape._evaluation.objective import Objective, evaluate_on_batch
from resonance_toolkit import (
    call_model,
    count_samples,
    devices_of,
    evaluating,
    logits_of,
    preserving,
    seed_generators,
)

MatrixKind = Literal["hessian", "gauss-newton"]
MATRIX_KINDS: tuple[MatrixKind, ...] = get_args(MatrixKind)

Product = Callable[[Tensor], Tensor]
BatchProduct = Callable[[list[Tensor]], list[Tensor]]
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class CurvatureMatrix:
    """What a curvature matrix is made of: a loss over samples, and the parameters it is about.

    Attributes:
        model: Called as its inputs ask for.
        params: The parameters, by name.
        batches: Pairs of inputs and targets, iterated anew for each product if need be.
        objective: The loss.
        kind: Which matrix.
        n_samples: In all batches.
        memory: Bytes that retained graphs may take.
        seed: Of the random numbers that a model draws: the same in every pass over the batches.
    """

    model: nn.Module
    params: Params
    batches: Iterable[Batch]
    objective: Objective
    kind: MatrixKind
    n_samples: int
    memory: float
    seed: int


@contextmanager
def matrix_vector_product(matrix: CurvatureMatrix) -> Iterator[Product]:
    """Give a function that multiplies a flat vector by the matrix of the mean loss.

    The graph of the gradient is kept and differentiated again for each product, which costs less
    than three forward passes; where all graphs would take more than `memory` bytes, each batch's
    graph is made anew for each product.
    """
    params = list(matrix.params.values())
    sizes = [p.numel() for p in params]

    with _differentiating(matrix), _progress_bar() as bar:
        kept_products = _keep_graphs(matrix, params)

        def product(vector: Tensor) -> Tensor:
            pieces = zip(vector.split(sizes), params, strict=True)
            by_parameter = [piece.to(p.device, p.dtype).view_as(p) for piece, p in pieces]

            # The mean over samples is a sum over batches, each with its share.
            products = _batch_products(matrix, params) if kept_products is None else kept_products
            total: list[Tensor] = []
            for multiply in products:
                result = multiply(by_parameter)
                total = [a + b for a, b in zip(total, result, strict=True)] if total else result

            bar.update()
            return torch.cat([piece.reshape(-1).to(vector) for piece in total])

        yield product


def gradient(matrix: CurvatureMatrix) -> Params:
    """The gradient of the mean loss."""
    params = list(matrix.params.values())
    total = {name: torch.zeros_like(p) for name, p in matrix.params.items()}

    with _differentiating(matrix):
        for batch, share in _batches_and_shares(matrix):
            slopes = grad(_mean_loss(matrix, batch, share), params, materialize_grads=True)
            for tensor, slope in zip(total.values(), slopes, strict=True):
                tensor += slope
    return total


def _progress_bar() -> Any:
    # How many products there will be is not known: this shows how many there were, and how fast.
    return tqdm(desc="curvature", unit="product", disable=None, leave=False)


@contextmanager
def _differentiating(matrix: CurvatureMatrix) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(preserving(matrix.model, values=False))
        stack.enter_context(evaluating(matrix.model))
        stack.enter_context(torch.enable_grad())

        # Fused attention cannot be differentiated twice.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))

        # By hand: `preserving` knows the model's own parameters only.
        for parameter in matrix.params.values():
            stack.callback(parameter.requires_grad_, parameter.requires_grad)
            parameter.requires_grad_(True)

        try:
            yield
        except RuntimeError as error:
            # "derivative for aten::hardsigmoid_backward is not implemented"
            operation = re.search(r"derivative for (?:aten::)?(\w+) is not implemented", str(error))
            if operation is None:
                raise
            name = operation[1].removesuffix("_backward")
            raise ValueError(
                f"`model`: its curvature cannot be computed, since torch has no second derivative "
                f"of the operation {name}; replace it by others of the same value (a hard sigmoid: "
                "relu6(x + 3) / 6)"
            ) from error


def _keep_graphs(matrix: CurvatureMatrix, params: list[Tensor]) -> list[BatchProduct] | None:
    """The products of all batches, or None if their graphs take more memory than allowed."""
    products = []
    n_bytes = 0

    def count_bytes(tensor: Tensor) -> Tensor:
        nonlocal n_bytes
        n_bytes += tensor.numel() * tensor.element_size()
        return tensor

    with saved_tensors_hooks(count_bytes, lambda tensor: tensor):
        for multiply in _batch_products(matrix, params):
            products.append(multiply)
            if n_bytes > matrix.memory:
                return None
    return products


def _batch_products(matrix: CurvatureMatrix, params: list[Tensor]) -> Iterator[BatchProduct]:
    make_product = _hessian_product if matrix.kind == "hessian" else _gauss_newton_product
    for batch, share in _batches_and_shares(matrix):
        yield make_product(matrix, params, batch, share)


def _batches_and_shares(matrix: CurvatureMatrix) -> Iterator[tuple[Batch, float]]:
    """Batches, each with its share of the samples."""
    # Drawn as at a point of a surface, so that curvature and surface are of one function.
    seed_generators(matrix.seed, devices_of(matrix.model))
    for batch in matrix.batches:
        yield batch, count_samples(batch) / matrix.n_samples


def _mean_loss(matrix: CurvatureMatrix, batch: Batch, share: float) -> Tensor:
    objective = matrix.objective
    outputs = call_model(matrix.model, batch[0]) if objective.kind == "outputs" else None
    losses = evaluate_on_batch(objective.loss, objective.kind, matrix.model, batch, outputs)
    return losses.mean() * share


def _hessian_product(
    matrix: CurvatureMatrix, params: list[Tensor], batch: Batch, share: float
) -> BatchProduct:
    loss = _mean_loss(matrix, batch, share)
    slopes = grad(loss, params, create_graph=True, materialize_grads=True)

    # A slope that depends on no parameter has no second derivative, and autograd refuses it.
    curved = [i for i, slope in enumerate(slopes) if slope.requires_grad]

    def multiply(vector: list[Tensor]) -> list[Tensor]:
        if not curved:
            return [torch.zeros_like(v) for v in vector]

        return list(
            grad(
                [slopes[i] for i in curved],
                params,
                [vector[i] for i in curved],
                retain_graph=True,
                materialize_grads=True,
            )
        )

    return multiply


def _gauss_newton_product(
    matrix: CurvatureMatrix, params: list[Tensor], batch: Batch, share: float
) -> BatchProduct:
    outputs = call_model(matrix.model, batch[0])
    read_outputs, free_outputs, slopes = _differentiate_by_outputs(matrix, batch, outputs, share)

    # J v, without forward mode: J' u is linear in u, and its derivative, transposed, is J.
    dummies = [torch.zeros_like(output, requires_grad=True) for output in read_outputs]
    transposed = grad(read_outputs, params, dummies, create_graph=True, materialize_grads=True)
    reached = [i for i, t in enumerate(transposed) if t.requires_grad]

    # A loss that is linear in the outputs has no curvature there.
    curved = [i for i, slope in enumerate(slopes) if slope.requires_grad]

    def multiply(vector: list[Tensor]) -> list[Tensor]:
        if not reached or not curved:
            return [torch.zeros_like(v) for v in vector]

        moved_outputs = grad(
            [transposed[i] for i in reached],
            dummies,
            [vector[i] for i in reached],
            retain_graph=True,
            materialize_grads=True,
        )
        curved_outputs = grad(
            [slopes[i] for i in curved],
            free_outputs,
            [moved_outputs[i] for i in curved],
            retain_graph=True,
            materialize_grads=True,
        )
        products = grad(
            read_outputs, params, curved_outputs, retain_graph=True, materialize_grads=True
        )
        return list(products)

    return multiply


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

    candidates = [i for i, leaf in enumerate(leaves) if _is_differentiable(leaf)]
    slopes = grad(
        losses.mean() * share,
        [free_leaves[i] for i in candidates],
        create_graph=True,
        allow_unused=True,
    )
    read = [(i, slope) for i, slope in zip(candidates, slopes, strict=True) if slope is not None]
    return (
        [leaves[i] for i, _ in read],
        [free_leaves[i] for i, _ in read],
        [slope for _, slope in read],
    )


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
