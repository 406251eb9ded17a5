from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xarray as xr
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from gradients._compare import Losses, measure_once
from gradients._dataset import make_dataset
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import find_group
from gradients._recorders.shards import is_sharded
from gradients._checks import check_model
from resonance_toolkit import AtMost, preserving, provenance, take


def noise(
    model: nn.Module,
    data: Any,
    losses: Callable[[Any, Any], Losses],
    *,
    samples: int | None = AtMost(500),
    batch_size: int = 50,
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    group: Any = "auto",
) -> xr.Dataset:
    """Measure how much the cosine of two gradients varies between mini-batches.

    The parameters stand still; each mini-batch gives one cosine. The intervals are percentiles
    of the bootstrap over mini-batches: with fewer than some ten of them they are too narrow.

    Args:
        model: Any module but a `fully_shard` one, in the mode to be measured. Left as it was.
        data: As for `resonance.take`.
        losses: Maps `(inputs, targets)` to two losses: of the model's own forward, and auxiliary.
        samples: How many samples to draw, if there are so many; None takes all.
        batch_size: Samples in a mini-batch.
        resamples: Bootstrap samples.
        confidence: Share of them inside an interval.
        seed: Decides samples, dropout and bootstrap.
        group: As for `Trace`: each mini-batch is then what the processes hold of it together, in
            equal shares, and each must bring as many.

    Returns:
        Dataset with `dot`, `norm_main`, `norm_aux`, `cosine (batch, layer)`, `cosine_total (batch)`
        and the losses, as of `Trace`; `mean`, `variance (layer)` of the cosine, `mean_total`,
        `variance_total`, and each with its interval in `..._low` and `..._high`.

    Raises:
        ValueError: If there are fewer than two mini-batches or not two losses, a setting is out of
            range, or the processes that share the model are unknown.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).repeat(4, 1)
        >>> def losses(x, y):  # the second gradient is the first axis
        ...     return model(x).sum(), model(torch.eye(2))[0].sum()
        >>> found = noise(model, (x, x), losses, samples=None, batch_size=1)
        >>> found["cosine_total"].values[:2].round(3)  # the angles are 0 and 45 degrees
        array([1. , 0.707])
        >>> found["variance_total"].round(4).item()
        0.0245
    """
    check_model(model)
    _check(resamples, confidence)
    if is_sharded(model):
        raise ValueError("`model`: expected a module that is not sharded; use `Trace`")
    processes = find_group(model, group)
    batches = take(data, samples, seed, model=model, batch_size=batch_size)
    if processes is not None:
        _check_alike(processes, len(batches), next(model.parameters()).device)
    if len(batches) < 2:
        raise ValueError(f"`batch_size`: expected at least two mini-batches, got {len(batches)}")
    recorder = ParameterRecorder(model, separate=True)
    recorder.group = processes
    rows = []
    with preserving(model):
        torch.manual_seed(seed)
        for x, y in tqdm(batches, "gradient noise", unit="batch", disable=None, leave=False):
            names, row = measure_once(recorder, losses(x, y))
            if len(names) != 2:
                raise ValueError(f"`losses`: expected two, got {len(names)}")
            rows.append(row)
    settings = {"batch_size": batch_size, "resamples": resamples, "confidence": confidence}
    attrs = provenance("gradients.noise", model, **settings, seed=seed)
    result = make_dataset(rows, recorder.layers, recorder.sizes, names, attrs)
    result = result.assign_coords(step=range(len(rows))).rename(step="batch")
    result["batch"].attrs["long_name"] = "mini-batch"
    picks = np.random.default_rng(seed).integers(len(rows), size=(resamples, len(rows)))
    for name, suffix in (("cosine", ""), ("cosine_total", "_total")):
        result.update(_intervals(result[name], picks, confidence, suffix))
    return result


def _intervals(
    cosine: xr.DataArray, picks: NDArray[np.int64], confidence: float, suffix: str
) -> dict[str, xr.Variable]:
    values = cosine.values.reshape(len(cosine), -1)
    dims = cosine.dims[1:]
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    found: dict[str, xr.Variable] = {}
    for name, statistic in (("mean", np.mean), ("variance", _variance)):
        text = f"{name} of the cosine over mini-batches"
        low_high = np.array(
            [np.percentile(statistic(column[picks], axis=1), tails) for column in values.T]
        )
        whole = statistic(values, axis=0)
        for key, numbers, extra in (
            (name + suffix, whole, ""),
            (f"{name}{suffix}_low", low_high[:, 0], ", lower end"),
            (f"{name}{suffix}_high", low_high[:, 1], ", upper end"),
        ):
            shaped = numbers.reshape(cosine.shape[1:])
            found[key] = xr.Variable(dims, shaped, {"long_name": text + extra})
    return found


def _variance(values: NDArray[np.float64], axis: int) -> Any:
    return np.var(values, axis=axis, ddof=1)


def _check_alike(group: dist.ProcessGroup, n_batches: int, device: torch.device) -> None:
    ends = torch.tensor([n_batches, -n_batches], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)
    most, fewest = ends[0].item(), -ends[1].item()
    if most != fewest:  # one would wait for the others for ever
        raise ValueError(
            "`data`: expected as many mini-batches in each process, got between "
            f"{fewest} and {most}"
        )


def _check(resamples: int, confidence: float) -> None:
    if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
        raise ValueError(f"`resamples`: expected a whole number of at least 1, got {resamples!r}")
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"`confidence`: expected a number between 0 and 1, got {confidence!r}")
