"""Products of curvature matrices with vectors, from retained graphs where memory allows."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from tqdm import tqdm

from landscape._directions.parameters import Params
from landscape._evaluation.objective import Objective, apply
from resonance_toolkit import device_of, evaluating, preserving

MATRICES = ("hessian", "gauss-newton")
Product = Callable[[Tensor], Tensor]
Batches = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Curvature:
    """What a curvature matrix is made of: a loss over samples, and the parameters it is about."""

    model: nn.Module
    params: Params
    batches: Batches
    objective: Objective
    matrix: str
    n_samples: int
    memory: int


@contextmanager
def multiplying(about: Curvature) -> Iterator[Product]:
    """Give a function that multiplies a flat vector by the matrix of the mean loss.

    The graph of the gradient is kept and differentiated again for each product, which costs less
    than three forward passes; where all graphs would take more than `memory` bytes, each batch's
    graph is made anew for each product.
    """
    params = list(about.params.values())
    sizes = [p.numel() for p in params]
    with _differentiating(about), _progress() as bar:
        kept = _keep(about, params)

        def product(vector: Tensor) -> Tensor:
            pieces = zip(vector.split(sizes), params, strict=True)
            shaped = [piece.to(p.dtype).view_as(p) for piece, p in pieces]
            total: list[Tensor] = []
            for multiply in kept if kept is not None else _graphs(about, params):
                result = multiply(shaped)
                total = [a + b for a, b in zip(total, result, strict=True)] if total else result
            bar.update()
            return torch.cat([piece.reshape(-1).to(vector.dtype) for piece in total])

        yield product


def _progress() -> Any:
    # How many products there will be is not known: this shows how many there were, and how fast.
    return tqdm(desc="curvature", unit="product", disable=None, leave=False)


def gradient(about: Curvature) -> Params:
    """The gradient of the mean loss."""
    params = list(about.params.values())
    total = {name: torch.zeros_like(p) for name, p in about.params.items()}
    with _differentiating(about):
        for x, y, share in _shares(about):
            slopes = grad(_mean_loss(about, x, y, share), params, materialize_grads=True)
            for tensor, slope in zip(total.values(), slopes, strict=True):
                tensor += slope
    return total


@contextmanager
def _differentiating(about: Curvature) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(preserving(about.model, values=False))
        stack.enter_context(evaluating(about.model))
        stack.enter_context(torch.enable_grad())
        # Fused attention cannot be differentiated twice.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        for p in about.params.values():
            stack.callback(p.requires_grad_, p.requires_grad)  # `preserving` knows the model's only
            p.requires_grad_(True)
        yield


def _keep(
    about: Curvature, params: list[Tensor]
) -> list[Callable[[list[Tensor]], list[Tensor]]] | None:
    """All graphs, or None if they would take more memory than allowed."""
    kept = []
    used = 0

    def weigh(tensor: Tensor) -> Tensor:
        nonlocal used
        used += tensor.numel() * tensor.element_size()
        return tensor

    with saved_tensors_hooks(weigh, lambda tensor: tensor):
        for multiply in _graphs(about, params):
            kept.append(multiply)
            if used > about.memory:
                return None
    return kept


def _graphs(
    about: Curvature, params: list[Tensor]
) -> Iterator[Callable[[list[Tensor]], list[Tensor]]]:
    make = _hessian if about.matrix == "hessian" else _gauss_newton
    for x, y, share in _shares(about):
        yield make(about, params, x, y, share)


def _shares(about: Curvature) -> Iterator[tuple[Any, Any, float]]:
    """Batches on the model's device, each with its share of the samples."""
    device = device_of(about.model)
    for batch in about.batches:
        x, y = tree_map(lambda leaf: leaf.to(device), tuple(batch))
        yield x, y, len(tree_leaves(x)[0]) / about.n_samples


def _mean_loss(about: Curvature, x: Any, y: Any, share: float) -> Tensor:
    kind = about.objective.kind
    outputs = about.model(x) if kind == "outputs" else None
    return apply(kind, about.objective.loss, about.model, x, y, outputs).mean() * share


def _hessian(
    about: Curvature, params: list[Tensor], x: Any, y: Any, share: float
) -> Callable[[list[Tensor]], list[Tensor]]:
    loss = _mean_loss(about, x, y, share)
    slopes = grad(loss, params, create_graph=True, materialize_grads=True)
    bent = [i for i, slope in enumerate(slopes) if slope.requires_grad]

    def multiply(vector: list[Tensor]) -> list[Tensor]:
        if not bent:
            return [torch.zeros_like(v) for v in vector]
        return list(
            grad(
                [slopes[i] for i in bent],
                params,
                [vector[i] for i in bent],
                retain_graph=True,
                materialize_grads=True,
            )
        )

    return multiply


def _gauss_newton(
    about: Curvature, params: list[Tensor], x: Any, y: Any, share: float
) -> Callable[[list[Tensor]], list[Tensor]]:
    outputs = about.model(x)
    outputs = getattr(outputs, "logits", outputs)
    # The product of the Jacobian with a vector: differentiate its transpose's, which is linear.
    dummy = torch.zeros_like(outputs, requires_grad=True)
    transposed = grad(outputs, params, dummy, create_graph=True, materialize_grads=True)
    used = [i for i, t in enumerate(transposed) if t.requires_grad]
    given = outputs.detach().requires_grad_(True)
    loss = apply("outputs", about.objective.loss, about.model, x, y, given).mean() * share
    (slope,) = grad(loss, given, create_graph=True)

    def multiply(vector: list[Tensor]) -> list[Tensor]:
        (moved,) = grad(
            [transposed[i] for i in used], dummy, [vector[i] for i in used], retain_graph=True
        )
        (curved,) = grad(slope, given, moved, retain_graph=True)
        return list(grad(outputs, params, curved, retain_graph=True, materialize_grads=True))

    return multiply
