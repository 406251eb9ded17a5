from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from landscape._curvature.estimates import top_vectors
from landscape._curvature.matrix import MatrixKind
from landscape._curvature.setup import MatrixRequest, curvature_of, start_vector
from landscape._directions.parameters import Params
from landscape._evaluation.checks import check_limits
from resonance_toolkit import AtMost, check_no_nan, check_whole


def eigenvectors(
    model: nn.Module,
    data: Any,
    *,
    k: int = 2,
    loss: Callable[..., Any] | None = None,
    matrix: MatrixKind = "hessian",
    over: str | Sequence[str] | None = None,
    samples: int | None = AtMost(500),
    seed: int = 0,
    tolerance: float = 1e-3,
    max_products: int = 200,
    memory: float = 2**31,
    batch_size: int | None = None,
) -> list[Params]:
    """Compute the eigenvectors of the `k` largest eigenvalues, as directions by parameter name.

    Args:
        model: Any module; left as it was found.
        data: `(inputs, targets)`, a mapping with `labels`, or a source of these: a Dataset, a
            DataLoader, a list of batches. Inputs are a tensor, a tuple (passed as positional
            arguments) or a mapping (passed as keywords). Batches that are padded to different
            lengths are not merged.
        k: How many eigenvectors.
        loss: `(outputs, targets)` or, for the Hessian, `(model, x, y)`; by default the loss
            that the targets ask for, such as cross-entropy.
        matrix: `"hessian"` or `"gauss-newton"`; see `curvature`.
        over: Names or patterns of the parameters; all trained ones by default.
        samples: How many samples to draw, at most; None takes all.
        seed: Determines samples and start vectors.
        tolerance: Allowed error of each eigenvalue, relative to it.
        max_products: Largest number of products. A vector that has not converged by then is
            returned as it is.
        memory: Bytes that retained graphs and basis vectors may take; see `curvature`.
        batch_size: Samples per batch; by default as many as keep activations in the CPU's cache.

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
    seed = check_whole("seed", seed, at_least=None)
    request = MatrixRequest(
        data,
        loss=loss,
        matrix=matrix,
        over=over,
        samples=samples,
        seed=seed,
        memory=memory,
        batch_size=batch_size,
    )
    curvature_matrix = curvature_of(model, request)

    k = check_whole("k", k)
    n_parameters = len(start_vector(curvature_matrix.params))
    if k > n_parameters:
        raise ValueError(f"`k`: expected 1 to {n_parameters}, got {k!r}")
    max_products = check_whole("max_products", max_products)
    check_limits(tolerance=tolerance)

    vectors = top_vectors(curvature_matrix, k, tolerance, max_products, seed)
    if any(bool(piece.isnan().any()) for vector in vectors for piece in vector.values()):
        check_no_nan(curvature_matrix.batches)
    return vectors
