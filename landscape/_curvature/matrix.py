"""Products of curvature matrices with vectors, from retained graphs where memory allows.

With `L` the mean loss and `f` the outputs of the model, both over the parameters,

    hessian        H v = d/dw (dL/dw . v)
    gauss-newton   G v = J' (d^2L/df^2) J v,    J = df/dw

Neither matrix is ever written out. The graph of each batch is made once and differentiated for each
product, or, if all graphs take too much memory, made anew for each.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from tqdm import tqdm

from landscape._directions.parameters import Params
from landscape._evaluation.objective import Objective, evaluate_on_batch
from resonance_toolkit import count_samples, device_of, evaluating, logits_of, preserving

MatrixKind = Literal["hessian", "gauss-newton"]
MATRIX_KINDS: tuple[MatrixKind, ...] = get_args(MatrixKind)

Product = Callable[[Tensor], Tensor]
BatchProduct = Callable[[list[Tensor]], list[Tensor]]
Batch = tuple[Any, Any]


@dataclass(frozen=True)
class CurvatureMatrix:
    """What a curvature matrix is made of: a loss over samples, and the parameters it is about.

    Attributes:
        model: Called as `model(inputs)`.
        params: The parameters, by name.
        batches: Pairs of inputs and targets, iterated anew for each product if need be.
        objective: The loss.
        kind: Which matrix.
        n_samples: In all batches.
        memory: Bytes that retained graphs may take.
    """

    model: nn.Module
    params: Params
    batches: Iterable[Batch]
    objective: Objective
    kind: MatrixKind
    n_samples: int
    memory: float


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
            by_parameter = [piece.to(p.dtype).view_as(p) for piece, p in pieces]

            # The mean over samples is a sum over batches, each with its share.
            products = _batch_products(matrix, params) if kept_products is None else kept_products
            total: list[Tensor] = []
            for multiply in products:
                result = multiply(by_parameter)
                total = [a + b for a, b in zip(total, result, strict=True)] if total else result

            bar.update()
            return torch.cat([piece.reshape(-1).to(vector.dtype) for piece in total])

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
        yield


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
    """Batches on the model's device, each with its share of the samples."""
    device = device_of(matrix.model)
    for batch in matrix.batches:
        inputs, targets = tree_map(lambda leaf: leaf.to(device), tuple(batch))
        yield (inputs, targets), count_samples(inputs) / matrix.n_samples


def _mean_loss(matrix: CurvatureMatrix, batch: Batch, share: float) -> Tensor:
    objective = matrix.objective
    outputs = matrix.model(batch[0]) if objective.kind == "outputs" else None
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
    outputs = logits_of(matrix.model(batch[0]))

    # J v, without forward mode: J' u is linear in u, and its derivative, transposed, is J.
    dummy = torch.zeros_like(outputs, requires_grad=True)
    transposed = grad(outputs, params, dummy, create_graph=True, materialize_grads=True)
    reached = [i for i, t in enumerate(transposed) if t.requires_grad]

    # The loss as a function of the outputs alone.
    free_outputs = outputs.detach().requires_grad_(True)
    objective = matrix.objective
    losses = evaluate_on_batch(objective.loss, "outputs", matrix.model, batch, free_outputs)
    (slope,) = grad(losses.mean() * share, free_outputs, create_graph=True)

    def multiply(vector: list[Tensor]) -> list[Tensor]:
        (moved_outputs,) = grad(
            [transposed[i] for i in reached],
            dummy,
            [vector[i] for i in reached],
            retain_graph=True,
        )
        (curved_outputs,) = grad(slope, free_outputs, moved_outputs, retain_graph=True)
        products = grad(outputs, params, curved_outputs, retain_graph=True, materialize_grads=True)
        return list(products)

    return multiply
