"""Forward passes of a model over the batches that data give, with their attention recorded."""

from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attention._recording import Recording
from attention._settings import Settings
from attention._watching import watching
from resonance_toolkit import (
    LABEL_NAMES,
    AtMost,
    Batches,
    call_model,
    check_no_nan,
    device_of,
    devices_of,
    evaluating,
    is_whole_batch,
    keywords_of_forward,
    logits_of,
    preserving_rng,
    resharding,
    take,
    track,
)

# Of a source without a size of its own, as `take` has it.
_SAMPLES_AT_A_TIME = 100


def take_inputs(
    model: nn.Module, data: Any, samples: int | None, seed: int, batch_size: int | None
) -> tuple[Batches, dict[str, Any]]:
    """Return inputs and targets of each forward pass, and what decided about them, as attributes.

    Targets are None where there are none.
    """
    is_one_batch = is_whole_batch(data, needs_targets=False)
    is_default = isinstance(samples, AtMost) and batch_size is None
    if is_one_batch and is_default and _is_plain_call(model, data):
        device = device_of(model)
        return [(tree_map_only(Tensor, lambda tensor: tensor.to(device), data), None)], {}

    # A batch that is given as such is taken whole, in one pass, unless something else is asked for.
    if is_one_batch and isinstance(samples, AtMost):
        samples = None
    if not is_one_batch and batch_size is None:
        batch_size = _SAMPLES_AT_A_TIME
    batches = take(data, samples, seed, model=model, batch_size=batch_size, needs_targets=False)
    return batches, {"seed": seed}


def _is_plain_call(model: nn.Module, data: Any) -> bool:
    """Tell whether data is what the model is called with already, and nothing beside it."""
    if isinstance(data, Tensor):
        return True
    if isinstance(data, tuple) and len(data) != 2:
        return all(isinstance(argument, Tensor) for argument in data)
    if not isinstance(data, dict) or any(name in data for name in LABEL_NAMES):
        return False

    # What a model takes beside tensors, such as a cache, is no matter of ours.
    values = data.values()
    if not any(isinstance(value, Tensor) for value in values):
        return False
    if any(isinstance(value, np.ndarray | list | str | bytes) for value in values):
        return False
    keywords = keywords_of_forward(model)
    return keywords is None or set(data) <= keywords


def check_inputs(result: xr.Dataset, batches: Batches) -> None:
    """Refuse inputs that are NaN, where a result is undefined throughout."""
    # Asked only where a sample is undefined throughout: to look at all inputs takes its time.
    entropy = result.variables["entropy"].values
    if np.isnan(entropy).reshape(len(entropy), -1).all(1).any():
        check_no_nan(batches)


def run_batches(model: nn.Module, batches: Batches, settings: Settings) -> Recording:
    """Run a model in eval mode on all batches, and record its attention."""
    with (
        evaluating(model),
        preserving_rng(devices_of(model)),
        resharding(model),
        watching(model, settings) as recording,
    ):
        for inputs, targets in track(batches, "attention", unit="batch"):
            recording.targets = targets
            output = call_model(model, inputs)

            # Outputs of many positions, as of language models, would fill the memory.
            if len(batches) == 1 or logits_of(output).dim() <= 2:
                recording.outputs.append(output)

    if len(batches) > 1:
        shapes = {logits_of(output).shape[1:] for output in recording.outputs}
        if len(shapes) > 1 or len(recording.outputs) < len(batches):
            recording.outputs = []
    return recording
