"""What `curvature`, `eigenvectors` and `curvature_map` share: a matrix from a user's arguments."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from landscape._curvature.matrix import (
    MATRIX_KINDS,
    PRODUCT_KINDS,
    CurvatureMatrix,
    MatrixKind,
    ProductKind,
)
from landscape._directions.parameters import Params, tensors_to_move
from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.checks import check_limits
from landscape._evaluation.compatibility import Kind
from landscape._evaluation.objective import Measures, Objective, check_measures, make_objective
from landscape._evaluation.problem import Measurement
from landscape._evaluation.samples import (
    FEW_SAMPLES,
    SampleRequest,
    fix_samples,
    refuse_changes,
    refuse_ignored,
    slice_samples,
    try_out,
)
from resonance_toolkit import (
    Batches,
    check_choice,
    check_module,
    check_whole,
    count_samples,
    device_of,
    devices_of,
    leave_out_uncounted,
    preserving_rng,
    seed_generators,
    take,
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
    product: ProductKind = "exact"


def curvature_of(model: nn.Module, request: MatrixRequest) -> CurvatureMatrix:
    """Check the arguments, and bring together what products need."""
    check_module(model)
    check_choice("matrix", request.matrix, MATRIX_KINDS)
    check_choice("product", request.product, PRODUCT_KINDS)
    check_limits(memory=request.memory)
    if request.batch_size is not None:
        check_whole("batch_size", request.batch_size)

    measures = check_measures(request.loss, None)
    check_matrix_fits(request.matrix, measures.kind)
    params = covered_parameters(model, request.over)
    if request.product != "exact":
        _check_differences_fit(request.matrix, params)

    # A loader without a limit may be larger than memory: it is passed over for each product.
    batches: Iterable[Any]
    if request.samples is None and isinstance(request.data, DataLoader):
        stream = Streamed(request.data, model, request.seed, measures)
        objective, n_samples = _read_stream(stream, measures)
        batches = stream
    else:
        sample_request = SampleRequest(
            request.data,
            samples=request.samples,
            seed=request.seed,
            batch_size=request.batch_size,
        )
        fixed = fix_samples(model, measures, sample_request)
        objective = fixed.objective
        batches = fixed.batches
        n_samples = sum(count_samples(batch) for batch in fixed.batches)

    # Data parallel processes have batches of their own, whose products belong together. Their
    # wrapper would average gradients that are not for its optimizer: it is passed by.
    group = process_group_of(model)
    if group is not None:
        n_samples = _sum_over(group, n_samples, device_of(model))
        model = unwrap(model)

    return CurvatureMatrix(
        model,
        params,
        batches,
        objective,
        kind=request.matrix,
        n_samples=n_samples,
        memory=request.memory,
        seed=request.seed,
        product_kind=request.product,
        group=group,
    )


def covered_parameters(
    model: nn.Module, over: str | Sequence[str] | None, *, argument: str = "over"
) -> Params:
    """The parameters that a matrix is about: all trained ones by default.

    Args:
        model: Whose parameters.
        over: Their names or patterns.
        argument: What the user calls these, for errors.
    """
    trained = [name for name, p in unwrap(model).named_parameters() if p.requires_grad]
    return tensors_to_move(model, over or trained or "**", None, argument=argument)


def process_group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """The processes among which a model is data parallel; None if it is not, or has only one."""
    if not isinstance(model, DistributedDataParallel) or model.process_group.size() == 1:
        return None
    return model.process_group


def _sum_over(group: dist.ProcessGroup, number: int, device: torch.device) -> int:
    total = torch.tensor(number, device=device)
    dist.all_reduce(total, group=group)
    return int(total)


def _check_differences_fit(matrix: MatrixKind, params: Params) -> None:
    """Refuse what two gradients cannot give."""
    if matrix != "hessian":
        raise ValueError(
            f"`product`: 'finite difference' gives only the Hessian, but `matrix` is {matrix!r}; "
            "pass matrix='hessian', or product='exact'"
        )

    half = [name for name, p in params.items() if torch.finfo(p.dtype).bits < 32]
    if half:
        raise ValueError(
            f"`product`: finite differences are lost in the rounding errors of "
            f"{params[half[0]].dtype}, the dtype of {half[0]!r}; pass product='exact', or call "
            "model.float()"
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
        seed=measurement.seed,
    )


def check_matrix_fits(matrix: MatrixKind, kind: Kind) -> None:
    """Refuse a matrix that a loss of some kind does not have."""
    if matrix == "gauss-newton" and kind != "outputs":
        raise ValueError("`loss`: Gauss-Newton needs a callable of (outputs, targets)")


class Streamed:
    """A loader that gives the same batches on every pass, or is refused.

    Args:
        loader: The loader.
        model: Whose inputs they are.
        seed: Seeds every pass alike.
        measures: What is measured; samples without a target that counts there are left out.
    """

    def __init__(
        self, loader: DataLoader[Any], model: nn.Module, seed: int, measures: Measures
    ) -> None:
        self.loader = loader
        self.model = model
        self.seed = seed
        self.ignored = measures.ignored_target
        self.has_loss = measures.loss is not None

    def __iter__(self) -> Iterator[Any]:
        devices = devices_of(self.model)
        with preserving_rng(devices):
            seed_generators(self.seed, devices)
            for batch in self.loader:
                yield from self._understand(batch)

    def first_fingerprints(self, count: int) -> list[str]:
        """Fingerprints of the first batches of a pass."""
        return [fingerprint([batch]) for batch in islice(self, count)]

    def _understand(self, batch: Any) -> Batches:
        pieces = take(
            [batch],
            None,
            self.seed,
            model=self.model,
            batch_size=None,
            has_loss=self.has_loss,
        )
        if self.ignored is None:
            return pieces
        return leave_out_uncounted(pieces, self.ignored, may_be_all=True)


def start_vector(params: Params, *, device: torch.device | str | None = None) -> Tensor:
    """An empty vector with a number for each of the parameters', on their device by default.

    At least float32: a basis at half precision is neither orthogonal nor known to be invariant.
    """
    tensors = params.values()
    widest = reduce(torch.promote_types, (p.dtype for p in tensors), torch.float32)
    length = sum(p.numel() for p in tensors)
    return torch.empty(length, dtype=widest, device=device or next(iter(tensors)).device)


def split_vector(vector: Tensor, params: Params) -> Params:
    """A flat vector as tensors by parameter name."""
    pieces = vector.split([p.numel() for p in params.values()])
    return {
        name: piece.to(p.device, p.dtype).view_as(p)
        for (name, p), piece in zip(params.items(), pieces, strict=True)
    }


def _read_stream(stream: Streamed, measures: Measures) -> tuple[Objective, int]:
    """Refuse a loader that shuffles; choose the loss by all targets; count the samples."""
    refuse_changes(stream.first_fingerprints(2), stream.first_fingerprints(2))

    # Targets alone are held, and only until the loss is chosen.
    targets = [batch_targets for _, batch_targets in stream]
    objective = make_objective(measures, targets)
    refuse_ignored(targets, measures, objective)

    first_batch = next(iter(stream))
    few_samples = slice_samples(first_batch, 0, FEW_SAMPLES)
    trial = try_out(stream.model, objective, few_samples, first_batch)
    return trial.objective, sum(count_samples(batch_targets) for batch_targets in targets)
