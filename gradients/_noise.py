from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from gradients._checks import Group, check_confidence, check_unsharded
from gradients._dataset import make_dataset
from gradients._measure_losses import Losses, measure_losses
from gradients._recorders.parameters import ParameterRecorder
from gradients._recorders.processes import find_group
from resonance_toolkit import (
    AtMost,
    Batches,
    FailedPassError,
    check_module,
    check_no_nan,
    check_whole,
    count_samples,
    describe_tensors,
    devices_of,
    is_about_tensors,
    preserving,
    provenance,
    seed_generators,
    take,
    track,
)


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
    group: Group = "auto",
) -> xr.Dataset:
    """Measure how much the cosine of two gradients varies between mini-batches.

    The parameters do not change, and each mini-batch gives one cosine. Intervals are percentiles
    of the bootstrap over mini-batches; with fewer than about ten mini-batches they are too narrow.

    Args:
        model: Any module that is not sharded, in the mode to be measured. Left as it was.
        data: `(inputs, targets)`, where inputs are a tensor, a tuple or a mapping; a mapping with
            `labels`; or a source of these: a Dataset, a DataLoader, a list of batches.
        losses: Maps `(inputs, targets)` to two losses, the main and the auxiliary one.
        samples: How many samples to draw, at most; None takes all.
        batch_size: Samples in a mini-batch.
        resamples: Bootstrap samples.
        confidence: Confidence level of the intervals.
        seed: Determines samples, dropout and bootstrap.
        group: Processes to average gradients over: "auto" for those of the wrapper, a
            `ProcessGroup`, or None for this process alone. A mini-batch then consists of equal
            shares of all processes, and each process must have the same number of mini-batches.

    Returns:
        Dataset with `dot`, `norm_main`, `norm_aux`, `cosine (batch, layer)`, `cosine_total (batch)`
        and the losses, as in `Trace`; `mean`, `variance (layer)` of the cosine, `mean_total`,
        `variance_total`, and each with its interval in `..._low` and `..._high`. The attribute
        `n_samples` counts the samples of all processes; `loss` is the name of `losses`.

    Raises:
        ValueError: If there are fewer than two mini-batches or not two losses, inputs are NaN, a
            setting is out of range, the model is sharded, or the processes that share it are
            unknown.

    Examples:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).repeat(4, 1)
        >>> def losses(x, y):  # the second gradient is the first axis
        ...     return model(x).sum(), model(torch.eye(2))[0].sum()
        >>> spread = noise(model, (x, x), losses, samples=None, batch_size=1)
        >>> spread["cosine_total"].values[:2].round(3)  # the angles are 0 and 45 degrees
        array([1. , 0.707])
        >>> spread["variance_total"].round(4).item()
        0.0245
    """
    check_module(model)
    resamples = check_whole("resamples", resamples)
    check_confidence(confidence)
    check_unsharded(model, hint="; use `Trace` with `fully_shard`")

    processes = find_group(model, group)
    batches = take(data, samples, seed, model=model, batch_size=batch_size, has_loss=True)
    n_samples = sum(count_samples(inputs) for inputs, _ in batches)
    if processes is not None:
        device = next(model.parameters()).device
        n_samples = _agree_on_batches(processes, batches, n_samples, device)
    if len(batches) < 2:
        raise ValueError(f"`batch_size`: expected at least two mini-batches, got {len(batches)}")

    recorder = ParameterRecorder(model, separate=True)
    recorder.group = processes

    updates = []
    with preserving(model):
        seed_generators(seed, devices_of(model))
        for inputs, targets in track(batches, "gradient noise", unit="batch"):
            names, update = measure_losses(recorder, _call_losses(losses, inputs, targets))
            if len(names) != 2:
                raise ValueError(f"`losses`: expected two, got {len(names)}")
            updates.append(update)

    if any(np.isnan(update.loss).any() for update in updates):
        check_no_nan(batches)

    attributes = provenance(
        "gradients.noise",
        model,
        loss=losses,
        targets="given to the loss",
        n_samples=n_samples,
        batch_size=batch_size,
        resamples=resamples,
        confidence=confidence,
        seed=seed,
    )
    result = make_dataset(updates, recorder, names, attributes)
    result = result.assign_coords(step=range(len(updates))).rename(step="batch")
    result["batch"].attrs["long_name"] = "mini-batch"

    # The same resamples for all layers, and for the total.
    shape = (resamples, len(updates))
    picks = np.random.default_rng(seed).integers(len(updates), size=shape)
    result.update(_bootstrap(result["cosine"], picks, confidence, suffix=""))
    result.update(_bootstrap(result["cosine_total"], picks, confidence, suffix="_total"))
    return result


def _call_losses(losses: Callable[[Any, Any], Losses], inputs: Any, targets: Any) -> Losses:
    """Call what the user gave, and say what with, if torch cannot run it."""
    try:
        return losses(inputs, targets)
    except (RuntimeError, IndexError) as error:
        if not is_about_tensors(error):
            raise
        raise FailedPassError(
            f"`losses`: failed on inputs of {describe_tensors(inputs)} and targets of "
            f"{describe_tensors(targets)}: {error}"
        ) from error


def _bootstrap(
    cosine: xr.DataArray, picks: NDArray[np.int64], confidence: float, *, suffix: str
) -> dict[str, xr.Variable]:
    """Mean and variance of a cosine `(batch, ...)`, with percentile intervals."""
    values = cosine.values.reshape(len(cosine), -1)
    tails = [50 * (1 - confidence), 50 * (1 + confidence)]
    variables: dict[str, xr.Variable] = {}

    for name, statistic in (("mean", np.mean), ("variance", _sample_variance)):
        text = f"{name} of the cosine over mini-batches"
        estimate = statistic(values, axis=0)
        # Layer by layer: memory does not grow with resamples and layers at once.
        interval = np.array(
            [np.percentile(statistic(column[picks], axis=1), tails) for column in values.T]
        )

        for key, numbers, end in (
            (f"{name}{suffix}", estimate, ""),
            (f"{name}{suffix}_low", interval[:, 0], ", lower end"),
            (f"{name}{suffix}_high", interval[:, 1], ", upper end"),
        ):
            by_layer = numbers.reshape(cosine.shape[1:])
            variables[key] = xr.Variable(cosine.dims[1:], by_layer, {"long_name": text + end})

    return variables


def _sample_variance(values: NDArray[np.float64], axis: int) -> Any:
    return np.var(values, axis=axis, ddof=1)


def _agree_on_batches(
    group: dist.ProcessGroup, batches: Batches, n_samples: int, device: torch.device
) -> int:
    """Return the samples of all processes, if each has as many mini-batches."""
    # The largest number, and minus the smallest, in one message.
    ends = torch.tensor([len(batches), -len(batches)], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=group)

    most = ends[0].item()
    fewest = -ends[1].item()
    if most != fewest:  # one would wait for the others for ever
        raise ValueError(
            "`data`: expected as many mini-batches in each process, got between "
            f"{fewest} and {most}"
        )

    total = torch.tensor(n_samples, device=device)
    dist.all_reduce(total, group=group)
    return int(total)
