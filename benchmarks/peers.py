"""The same work by other tools, for `bench_landscape.py` to compare with."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import timing
from networks import Data

# Eigenvalues, and unit eigenvectors as rows.
Pairs = tuple[Tensor, Tensor]


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


def hessian_eigenthings(model: nn.Module, data: Data) -> Callable[[], object]:
    """One product with the Hessian, by hessian-eigenthings' operator."""
    operator = _eigenthings_operator(model, data)
    vector = torch.randn(operator.size)
    return lambda: operator.matvec(vector)


def pyhessian_eigenpairs(model: nn.Module, data: Data, tolerance: float) -> Pairs:
    """Five eigenvalues of largest magnitude by pyhessian: power iteration and deflation."""
    from pyhessian import hessian

    torch.manual_seed(0)
    operator = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False)
    values, vectors = operator.eigenvalues(top_n=5, tol=tolerance, maxIter=1000)
    flat_vectors = [torch.cat([piece.flatten() for piece in vector]) for vector in vectors]
    return torch.tensor(values), torch.stack(flat_vectors)


def curvlinops_eigenpairs(model: nn.Module, data: Data, tolerance: float) -> Pairs:
    """The five largest eigenvalues of curvlinops' operator by scipy's ARPACK."""
    return _arpack(model, data, tolerance, k=5, which="LA")


def curvlinops_both_ends(model: nn.Module, data: Data, tolerance: float) -> Pairs:
    """Five eigenvalues at each end of curvlinops' operator by scipy's ARPACK."""
    return _arpack(model, data, tolerance, k=10, which="BE")


def hessian_eigenthings_eigenpairs(model: nn.Module, data: Data, n_steps: float) -> Pairs:
    """The five largest eigenvalues by hessian-eigenthings: so many steps of Lanczos' method."""
    from hessian_eigenthings import lanczos

    operator = _eigenthings_operator(model, data)
    found = lanczos(operator, k=5, which="LA", max_iter=int(n_steps), seed=0)
    return found.eigenvalues, found.eigenvectors


def _arpack(model: nn.Module, data: Data, tolerance: float, *, k: int, which: str) -> Pairs:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import eigsh

    operator = HessianLinearOperator(
        model,
        nn.CrossEntropyLoss(),
        list(model.parameters()),
        [data],
        check_deterministic=False,
    )
    values, vectors = eigsh(operator.to_scipy(), k=k, which=which, tol=tolerance)
    return torch.from_numpy(values), torch.from_numpy(vectors.T)


def _eigenthings_operator(model: nn.Module, data: Data) -> Any:
    from hessian_eigenthings import HessianOperator, supervised_loss

    return HessianOperator(model, [data], supervised_loss(nn.CrossEntropyLoss()))
