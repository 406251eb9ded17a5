"""The same work by other tools, for `bench_landscape.py` to compare with."""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import timing
from networks import Data


def random_plane(model: nn.Module, data: Data, size: int) -> float:
    """CPU seconds of loss-landscapes for `size` x `size` points."""
    import loss_landscapes
    from loss_landscapes.metrics import Loss

    # A copy, because loss-landscapes leaves the model displaced.
    displaced_model = copy.deepcopy(model)
    metric = Loss(F.cross_entropy, *data)

    return timing.cpu_time(
        lambda: loss_landscapes.random_plane(displaced_model, metric, 1, size, "filter")
    )


def without_zeros(model: nn.Module) -> nn.Module:
    """Move parameters that are 0 away from it: loss-landscapes divides by their norm."""
    for parameter in model.parameters():
        if not parameter.detach().any():
            nn.init.normal_(parameter, std=1e-3)

    return model


def pyhessian(model: nn.Module, data: Data) -> Callable[[], object]:
    """One product with the Hessian, from a graph that pyhessian keeps."""
    from pyhessian import hessian
    from pyhessian.utils import hessian_vector_product

    operator = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False)
    vector = [torch.randn_like(parameter) for parameter in operator.params]
    return lambda: hessian_vector_product(operator.gradsH, operator.params, vector)


def curvlinops(model: nn.Module, data: Data) -> Callable[[], object]:
    """One product with the Hessian, by curvlinops' linear operator."""
    from curvlinops import HessianLinearOperator

    operator = HessianLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [data],
        check_deterministic=False,
    )
    vector = torch.randn(operator.shape[1])
    return lambda: operator @ vector


def pyhessian_eigenvalues(model: nn.Module, data: Data) -> Callable[[], object]:
    """Pyhessian's five largest eigenvalues to 1e-3, by power iteration and deflation."""
    from pyhessian import hessian

    loss = nn.CrossEntropyLoss()
    return lambda: hessian(model, loss, data=data, cuda=False).eigenvalues(
        top_n=5, tol=1e-3, maxIter=1000
    )


def curvlinops_eigenvalues(model: nn.Module, data: Data) -> Callable[[], object]:
    """The five largest eigenvalues of curvlinops' operator, to 1e-3, by scipy's ARPACK."""
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    def compute() -> object:
        operator = HessianLinearOperator(
            model,
            nn.CrossEntropyLoss(),
            list(model.parameters()),
            [data],
            check_deterministic=False,
        )
        return eigsh(operator.to_scipy(), k=5, which="LA", tol=1e-3, return_eigenvectors=False)

    return compute
