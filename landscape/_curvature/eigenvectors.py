from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from landscape._curvature.curvature import curvature_of, split_vector, start_vector
from landscape._curvature.estimates import extreme_eigenvalues
from landscape._curvature.matrix import Curvature, multiplying
from landscape._directions.parameters import Params
from landscape._evaluation.checks import check_counts, check_tolerances
from resonance_toolkit import AtMost, preserving_rng


def eigenvectors(
    model: nn.Module,
    data: Any,
    *,
    k: int = 2,
    loss: Callable[..., Any] | None = None,
    matrix: str = "hessian",
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    seed: int = 0,
    tolerance: float = 1e-3,
    max_products: int = 200,
    memory: int = 2**31,
    batch_size: int | None = None,
) -> list[Params]:
    """The eigenvectors of the `k` largest eigenvalues, as directions by parameter name.

    Args:
        model: Called as `model(inputs)`; left as it was found.
        data: `(x, y)` tensors, a Dataset, a DataLoader or a list of batches.
        k: How many.
        loss: As in `curvature`.
        matrix: As in `curvature`.
        over: As in `curvature`.
        samples: As in `curvature`.
        seed: As in `curvature`.
        tolerance: As in `curvature`.
        max_products: As in `curvature`.
        memory: As in `curvature`.
        batch_size: As in `curvature`.

    Returns:
        Unit vectors, largest eigenvalue first, each with the sum of its numbers positive.

    Raises:
        ValueError: If an argument does not fit.

    Examples:
        >>> import torch
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> square = lambda outputs, targets: (outputs**2).mean()
        >>> model = nn.Linear(2, 1, bias=False)
        >>> first, = eigenvectors(model, (x, x), loss=square, samples=2, k=1)
        >>> first["weight"].abs().round(decimals=3)
        tensor([[1., 0.]])
    """
    about = curvature_of(
        model, data, loss, matrix, over, samples=samples, seed=seed, memory=memory,
        batch_size=batch_size,
    )  # fmt: skip
    if type(k) is not int or not 1 <= k <= len(start_vector(about)):
        raise ValueError(f"`k`: expected 1 to {len(start_vector(about))}, got {k!r}")
    check_counts(max_products=max_products)
    check_tolerances(tolerance=tolerance)
    return top_vectors(about, k, tolerance=tolerance, max_products=max_products, seed=seed)


def top_vectors(
    about: Curvature, k: int, *, tolerance: float = 1e-3, max_products: int = 200, seed: int
) -> list[Params]:
    """Unit eigenvectors of the largest eigenvalues, of a fixed sign."""
    with preserving_rng(), multiplying(about) as product:
        found = extreme_eigenvalues(
            product, start_vector(about), k, tolerance, max_products, seed, both_ends=False
        )
    if len(found.values) < k:
        raise ValueError(
            f"`max_products`: {len(found.values)} products of {len(start_vector(about))} numbers "
            f"give no {k} eigenvectors"
        )
    vectors = [found.vector(-1 - i) for i in range(k)]
    vectors = [v / v.norm() * (-1.0 if v.double().sum() < 0 else 1.0) for v in vectors]
    return [split_vector(v, about.params) for v in vectors]
