"""The same work by other tools, for the benchmarks to compare with."""

import copy
from collections.abc import Callable

import timing  # first: it moves the benchmarks' folder out of the way
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Data = tuple[Tensor, Tensor]


def random_plane(model: nn.Module, data: Data, size: int) -> float:
    """CPU seconds of loss-landscapes for `size` x `size` points."""
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    moved = copy.deepcopy(model)  # it leaves the model displaced
    metric = Loss(F.cross_entropy, *data)
    return timing.cpu_time(lambda: loss_landscapes.random_plane(moved, metric, 1, size, "filter"))


def without_zeros(model: nn.Module) -> nn.Module:
    """Nudge parameters that are 0: loss-landscapes divides by their norm, and fails."""
    for p in model.parameters():
        if not p.detach().any():
            nn.init.normal_(p, std=1e-3)
    return model


def pyhessian(model: nn.Module, data: Data) -> Callable[[], object]:
    """A product with the Hessian."""
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    found = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False)
    vector = [torch.randn_like(p) for p in found.params]
    return lambda: hessian_vector_product(found.gradsH, found.params, vector)


def curvlinops(model: nn.Module, data: Data) -> Callable[[], object]:
    """A product with the Hessian."""
    from curvlinops import HessianLinearOperator

    params = list(model.parameters())
    operator = HessianLinearOperator(
        model, nn.CrossEntropyLoss(), params, [data], check_deterministic=False
    )
    vector = torch.randn(operator.shape[1])
    return lambda: operator @ vector
