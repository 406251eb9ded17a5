"""What `curvature`, `eigenvectors` and `curvature_map` share: a matrix from a user's arguments."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from landscape._curvature.matrix import MATRIX_KINDS, CurvatureMatrix, MatrixKind
from landscape._directions.parameters import Params, tensors_to_move
from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.checks import check_limits
from landscape._evaluation.objective import Objective, make_objective
from landscape._evaluation.problem import Measurement
from landscape._evaluation.samples import (
    cut_into_batches,
    fixed_samples,
    refuse_changes,
    refuse_ignored,
)
from resonance_toolkit import (
    check_choice,
    check_module,
    check_whole,
    count_samples,
    preserving_rng,
    unwrap,
)


@dataclass(frozen=True)
class MatrixRequest:
    """The arguments that verbs about curvature share; `curvature` says what they mean."""

    data: Any
    _: KW_ONLY
    loss: Callable[..., Any] | None
    matrix: MatrixKind
    over: str | Sequence[str] | None
    samples: int | None
    seed: int
    memory: float
    batch_size: int | None


def curvature_of(model: nn.Module, request: MatrixRequest) -> CurvatureMatrix:
    """Check the arguments, and bring together what products need."""
    check_module(model)
    check_choice("matrix", request.matrix, MATRIX_KINDS)
    check_limits(memory=request.memory)
    if request.batch_size is not None:
        check_whole("batch_size", request.batch_size)

    objective = make_objective(request.loss, None)
    check_matrix_fits(request.matrix, objective)

    trained = [name for name, p in unwrap(model).named_parameters() if p.requires_grad]
    params = tensors_to_move(model, request.over or trained or "**", None)

    # A loader without a limit may be larger than memory: it is passed over for each product.
    batches: Any
    if request.samples is None and isinstance(request.data, DataLoader):
        batches = Streamed(request.data, request.seed)
        n_samples = _check_stream(batches, objective)
    else:
        samples = fixed_samples(model, request.data, objective, request.samples, request.seed)
        batches = cut_into_batches(
            model, samples, request.batch_size, keep_together=objective.is_weighted
        )
        n_samples = sum(count_samples(inputs) for inputs, _ in batches)

    return CurvatureMatrix(
        model,
        params,
        batches,
        objective,
        kind=request.matrix,
        n_samples=n_samples,
        memory=request.memory,
    )


def matrix_of(
    measurement: Measurement, params: Params, kind: MatrixKind, memory: float
) -> CurvatureMatrix:
    """The matrix of what is being measured, over these parameters."""
    return CurvatureMatrix(
        measurement.model,
        params,
        measurement.batches,
        measurement.objective,
        kind=kind,
        n_samples=measurement.n_samples,
        memory=memory,
    )


def check_matrix_fits(matrix: MatrixKind, objective: Objective) -> None:
    """Refuse a matrix that a loss does not have."""
    if matrix == "gauss-newton" and objective.kind != "outputs":
        raise ValueError("`loss`: Gauss-Newton needs a callable of (outputs, targets)")


class Streamed:
    """A loader that gives the same batches on every pass, or is refused."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader = loader
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        with preserving_rng():
            torch.manual_seed(self.seed)
            yield from self.loader

    def first_fingerprints(self, count: int) -> list[str]:
        """Fingerprints of the first batches of a pass."""
        return [fingerprint([batch]) for batch in islice(self, count)]


def start_vector(matrix: CurvatureMatrix) -> Tensor:
    """An empty vector of the right length, type and device.

    At least float32: a basis at half precision is neither orthogonal nor known to be invariant.
    """
    params = matrix.params.values()
    widest = reduce(torch.promote_types, (p.dtype for p in params), torch.float32)
    length = sum(p.numel() for p in params)
    return torch.empty(length, dtype=widest, device=next(iter(params)).device)


def split_vector(vector: Tensor, params: Params) -> Params:
    """A flat vector as tensors by parameter name."""
    pieces = vector.split([p.numel() for p in params.values()])
    return {
        name: piece.to(p.dtype).view_as(p)
        for (name, p), piece in zip(params.items(), pieces, strict=True)
    }


def _check_stream(stream: Streamed, objective: Objective) -> int:
    """Refuse a loader that shuffles, and targets that the loss ignores; count the samples."""
    refuse_changes(stream.first_fingerprints(2), stream.first_fingerprints(2))

    n_samples = 0
    for inputs, targets in stream:
        refuse_ignored(targets, objective)
        n_samples += count_samples(inputs)
    return n_samples
