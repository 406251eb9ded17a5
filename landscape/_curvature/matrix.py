"""A curvature matrix: what it is made of, and how to differentiate its loss.

With `L` the mean loss and `f` the outputs of the model, both over the parameters `w`, the Hessian
is `d^2 L / dw^2` and the Gauss-Newton matrix `J' (d^2 L / df^2) J`, `J = df / dw`. Neither is ever
written out: `products.py` multiplies by them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.distributed import ProcessGroup
from torch.nn.attention import SDPBackend, sdpa_kernel

from landscape._curvature.chunked_cross_entropy import ChunkingCrossEntropy
from landscape._directions.parameters import Params
from landscape._evaluation.objective import Objective, evaluate_on_batch
from resonance_toolkit import (
    call_model,
    count_samples,
    devices_of,
    evaluating,
    is_compiled,
    preserving,
    seed_generators,
)

MatrixKind = Literal["hessian", "gauss-newton"]
MATRIX_KINDS: tuple[MatrixKind, ...] = get_args(MatrixKind)

ProductKind = Literal["exact", "finite difference"]
PRODUCT_KINDS: tuple[ProductKind, ...] = get_args(ProductKind)

Batch = tuple[Any, Any]

# Which of the parameters, by position.
Block = Sequence[int]


@dataclass(frozen=True)
class CurvatureMatrix:
    """What a curvature matrix is made of: a loss over samples, and the parameters it is about.

    Attributes:
        model: Called as its inputs ask for.
        params: The parameters, by name.
        batches: Pairs of inputs and targets, iterated again for each product if necessary.
        objective: The loss.
        kind: Which matrix.
        n_samples: In all batches, of all processes.
        memory: Bytes that retained graphs and the basis of Lanczos' method may take.
        product_kind: How products are made.
        group: Processes whose batches count together; None if this one is alone.
        seed: Of the random numbers that a model draws: the same in every pass over the batches.
    """

    model: nn.Module
    params: Params
    batches: Iterable[Batch]
    objective: Objective
    kind: MatrixKind
    n_samples: int
    memory: float
    product_kind: ProductKind = "exact"
    group: ProcessGroup | None = None
    seed: int = 0


def gradient(matrix: CurvatureMatrix) -> Params:
    """The gradient of the mean loss."""
    with differentiating(matrix), ChunkingCrossEntropy():
        slopes = sum_of_slopes(matrix, list(matrix.params.values()))
    return dict(zip(matrix.params, slopes, strict=True))


def sum_of_slopes(matrix: CurvatureMatrix, params: list[Tensor]) -> list[Tensor]:
    """The gradient of the mean loss over the batches of this process."""
    total = [torch.zeros_like(p) for p in params]
    for batch, share in batches_and_shares(matrix):
        slopes = grad(mean_loss(matrix, batch, share), params, materialize_grads=True)
        for tensor, slope in zip(total, slopes, strict=True):
            tensor += slope
    return total


def batches_and_shares(matrix: CurvatureMatrix) -> Iterator[tuple[Batch, float]]:
    """Batches, each with its share of the samples."""
    # Drawn as at a point of a surface, so that curvature and surface are of one function.
    seed_generators(matrix.seed, devices_of(matrix.model))
    for batch in matrix.batches:
        yield batch, count_samples(batch) / matrix.n_samples


def mean_loss(matrix: CurvatureMatrix, batch: Batch, share: float) -> Tensor:
    """What a batch adds to the mean loss."""
    objective = matrix.objective
    outputs = call_model(matrix.model, batch[0]) if objective.kind == "outputs" else None
    losses = evaluate_on_batch(objective.loss, objective.kind, matrix.model, batch, outputs)
    check_differentiable(losses)
    return losses.mean() * share


def check_differentiable(losses: Tensor) -> None:
    """Refuse a loss that was cut off from what it was made of."""
    if not losses.requires_grad:
        raise ValueError(
            "`loss`: expected one that depends on the parameters, got a number without a graph: "
            "it may be detached, made of whole numbers, or of none of the parameters `over` names"
        )


@contextmanager
def differentiating(matrix: CurvatureMatrix) -> Iterator[None]:
    """Make the loss differentiable by the parameters, twice if products are to be exact."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "`model`: inside torch.inference_mode() nothing can be differentiated; call this "
            "outside of it (inside torch.no_grad() it works)"
        )

    with ExitStack() as stack:
        stack.enter_context(preserving(matrix.model, values=False))
        stack.enter_context(evaluating(matrix.model))
        stack.enter_context(torch.enable_grad())

        # Neither fused attention nor compiled code can be differentiated twice.
        if matrix.product_kind == "exact":
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(is_compiled(module) for module in matrix.model.modules()):
                stack.enter_context(torch.compiler.set_stance("force_eager"))

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
                f"of the operation {name}; pass product='finite difference', or replace the "
                "operation by others of the same value (a hard sigmoid: relu6(x + 3) / 6)"
            ) from error
