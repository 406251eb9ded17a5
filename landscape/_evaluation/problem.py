"""What is to be evaluated: a model, on which samples, moving which tensors along which axes.

    Request       what the user asked for, in the words of the verbs
    Measurement   the same, checked: an objective on fixed batches
    Problem       a measurement, and the tensors and axes along which the model moves

A problem is made once, with its axes, and does not change; `evaluate` turns it into values.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from landscape._directions.parameters import Params
from landscape._directions.vectors import Direction
from landscape._evaluation.checkpoint import fingerprint
from landscape._evaluation.compatibility import Measure
from landscape._evaluation.objective import Objective, check_measures
from landscape._evaluation.samples import FEW_SAMPLES, SampleRequest, fix_samples, slice_samples
from resonance_toolkit import (
    Batches,
    check_choice,
    check_module,
    check_whole,
    count_samples,
    describe_targets,
    device_of,
    dtype_name,
    provenance,
)

BatchNormStatistics = Literal["frozen", "recompute"]
Attributes = dict[str, str | int | float]

# Characters of an attribute: netCDF takes 64 kB for all attributes together.
_LONGEST_ATTRIBUTE = 20_000


@dataclass(frozen=True)
class Request:
    """The arguments that all verbs share; `grid` says what they mean."""

    data: Any
    _: KW_ONLY
    loss: Measure | None
    metrics: Mapping[str, Measure] | None = None
    samples: int | None
    seed: int
    bn: BatchNormStatistics = "frozen"
    batch_size: int | None


@dataclass(frozen=True)
class Measurement:
    """A model and what is measured of it, wherever its weights are.

    `is_divisible`: False if the model runs on whole batches alone.
    """

    model: nn.Module
    objective: Objective
    batches: Batches
    bn: BatchNormStatistics
    seed: int
    is_divisible: bool = True

    @property
    def few_samples(self) -> tuple[Any, Any]:
        """As few as the model runs on."""
        first_batch = self.batches[0]
        few: tuple[Any, Any] = slice_samples(first_batch, 0, FEW_SAMPLES)
        return few if self.is_divisible else first_batch

    @property
    def has_finite_inputs(self) -> bool:
        """True if no input is NaN or infinite."""
        tensors = tree_leaves([inputs for inputs, _ in self.batches])
        return all(_is_finite(tensor) for tensor in tensors if isinstance(tensor, Tensor))

    @property
    def targets(self) -> str:
        """What they were understood as, and beside which inputs."""
        return describe_targets(self.objective.targets, *self.batches[0])

    @property
    def n_samples(self) -> int:
        """Samples on which it is measured."""
        return sum(count_samples(inputs) for inputs, _ in self.batches)


def _is_finite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return bool(tensor.isfinite().all())

    # NaN comes through both ends. `isfinite` would write four arrays as large as the inputs.
    smallest, largest = tensor.aminmax()
    return bool(smallest.isfinite() & largest.isfinite())


@dataclass(frozen=True)
class PointProbe:
    """Further values at each point, from a function called while the model is there."""

    names: tuple[str, ...]
    measure: Callable[[], list[float]]


@dataclass(frozen=True)
class Problem:
    """All that evaluating a point needs; can be pickled as one piece.

    Attributes:
        measurement: What is measured.
        tensors: What moves, by name.
        axes: Directions of the same names.
        settings: How the axes came about, for attributes and checkpoints.
        probe: What else is measured, if anything.
    """

    measurement: Measurement
    tensors: Params
    axes: tuple[Direction, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    probe: PointProbe | None = None

    @property
    def value_names(self) -> list[str]:
        """What is measured at a point, in order."""
        probed = self.probe.names if self.probe is not None else ()
        return ["loss", "loss_se", "accuracy", *self.measurement.objective.metrics, *probed]


def make_measurement(model: nn.Module, request: Request) -> Measurement:
    """Check the arguments that all verbs share, and draw the samples."""
    check_module(model)
    check_choice("bn", request.bn, get_args(BatchNormStatistics))
    batch_size = request.batch_size
    if batch_size is not None:
        batch_size = check_whole("batch_size", batch_size)
    seed = check_whole("seed", request.seed, at_least=None)

    measures = check_measures(request.loss, request.metrics)
    sample_request = SampleRequest(
        request.data, samples=request.samples, seed=seed, batch_size=batch_size
    )
    fixed = fix_samples(model, measures, sample_request)
    return Measurement(model, fixed.objective, fixed.batches, request.bn, seed, fixed.is_divisible)


def make_problem(
    model: nn.Module,
    request: Request,
    tensors: Params,
    axes: tuple[Direction, ...],
    settings: Mapping[str, Any],
) -> Problem:
    """Bring together a problem whose axes are known beforehand."""
    return Problem(make_measurement(model, request), tensors, axes, settings)


def describe(problem: Problem, *, draws_random_numbers: bool) -> Attributes:
    """Say what is measured, and how, as attributes of a result."""
    measurement = problem.measurement
    model = measurement.model

    names = ", ".join(problem.tensors)
    if len(names) > _LONGEST_ATTRIBUTE:
        names = f"{names[:_LONGEST_ATTRIBUTE]} ... ({len(problem.tensors)} in all)"

    return {
        "seed": measurement.seed,
        "n_samples": measurement.n_samples,
        "moved": names,
        "n_moved": sum(tensor.numel() for tensor in problem.tensors.values()),
        "mode": "eval: dropout off",
        "random_numbers": "same at every point" if draws_random_numbers else "none drawn",
        "batch_norm": f"{measurement.bn} statistics" if batch_norms(model) else "none",
        "loss": measurement.objective.loss_name,
        "targets": measurement.targets,
        "dtype": dtype_name(next(iter(problem.tensors.values())).dtype),
        "device": device_of(model).type,
    }


def identify(problem: Problem, *, draws_random_numbers: bool) -> dict[str, Any]:
    """What must be the same for two runs to give the same values."""
    measurement = problem.measurement
    model = measurement.model

    # What moves may lie outside of the model: tensors of `extra`.
    tensors = [*model.parameters(), *model.buffers(), *problem.tensors.values()]

    return {
        **provenance("identity", model),
        **describe(problem, draws_random_numbers=draws_random_numbers),
        "weights": fingerprint(tensors),
        "data": fingerprint(measurement.batches),
        "axes": fingerprint(axis[name] for axis in problem.axes for name in axis),
        "batches": ", ".join(str(count_samples(inputs)) for inputs, _ in measurement.batches),
        "metrics": ", ".join(measurement.objective.metrics),
        **problem.settings,
    }


def batch_norms(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The batch norms that keep running statistics."""
    kind = nn.modules.batchnorm._BatchNorm
    return [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]
