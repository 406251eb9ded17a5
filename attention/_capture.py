from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attention._recording import ClassTokenNotSeenError, Recording
from attention._settings import KeyChoice, QueryChoice, Settings
from attention._watching import watching
from resonance_toolkit import (
    LABEL_NAMES,
    AtMost,
    call_model,
    check_module,
    check_no_nan,
    device_of,
    devices_of,
    evaluating,
    is_whole_batch,
    keywords_of_forward,
    logits_of,
    preserving_rng,
    take,
)

# Of a source without a size of its own, as `take` has it.
_SAMPLES_AT_A_TIME = 100


@torch.no_grad()
def capture(
    model: nn.Module,
    data: Any,
    *,
    layers: str | Sequence[str] | None = None,
    queries: QueryChoice | Sequence[int] = "auto",
    keys: KeyChoice = "patches",
    maps: bool = False,
    threshold: float = 0.1,
    mass: float = 0.9,
    prefix: int | None = None,
    chunk: int = 64,
    samples: int | None = AtMost(500),
    batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Run a model in eval mode, and measure the attention of all its layers.

    Nothing in the model changes: calls of `scaled_dot_product_attention`, and of a softmax over the
    last axis that goes into a product of matrices, are seen as torch executes them. A weight is
    the softmax itself: before dropout, and before heads are mixed (kind "talking heads").

    Args:
        model: Any module with attention; left as it was found.
        data: Inputs alone: a tensor, or a mapping of keywords, such as a tokenizer gives; or a pair
            `(inputs, targets)`, or a mapping with `labels`, of which the inputs are taken; or a
            source of these: a Dataset, a DataLoader, a list of batches. Samples come first. Several
            positional arguments are a tuple inside a pair, `((x1, x2), None)`; three or more
            arrays in a tuple will do without, while two arrays are inputs and targets.
        layers: Names or patterns; attention inside these layers is kept. None keeps all.
        queries: "auto" is "cls" where there is a class token (a parameter of that name, or the
            first token of a text encoder, as Bert's), else "mean". "cls" the class token's row;
            "mean" the mean over all rows, of each statistic and of the maps; "all"; or indices,
            counted through the windows one after another. A layer without a row asked for has
            NaN there.
        keys: "patches" leaves class, distillation and register tokens out, and lets the rest of
            the row add up to one; "all" keeps them.
        maps: Also keep the weights: 8 bytes each, `n_queries * n_keys` for each sample, layer and
            head if `queries="all"`.
        threshold: A key counts in `coverage` from this share of the row's peak.
        mass: What share of the attention `mass_coverage` gathers.
        prefix: How many tokens come before the patches, the class token first. None finds out.
        chunk: "all" and "mean" compute this many queries at a time, to bound memory.
        samples: How many to draw from a source, if there are so many; None takes all. A batch given
            as such is taken whole unless a number is asked for.
        batch_size: Samples in a forward pass. None: 100 of a source, all of a batch given as such.
        seed: Decides which samples are drawn.

    Returns:
        Dataset with the statistics that `attention.statistics` defines, `(sample, layer, head)`
        each, then `query` if `queries` is "all" or indices (`head_similarity` has no head), and:

        - `distance`: mean distance from the query to the keys, weighted by attention, in steps of
          the grid of queries (of a window, of the sequence). NaN for the class token, and
          between two sequences. Uniform: the mean distance to all keys.
        - `prefix_mass`: attention on the tokens before the patches, NaN if there are none.
        - `weight (..., key)` with `maps`; NaN where there is no such key or a mask hides it (its
          weight is below exp(-80) of the largest).
        - `prediction (sample, output)`: what the model returned (its logits, or else its first
          tensor); of several forward passes only if that is one row per sample.

        Where the call has a padding mask (`attention_mask`, `src_key_padding_mask`, ...), queries
        that are padding have no statistics, NaN with "all" and indices, and are in no mean; keys
        that are padding are hidden by the model's own mask.

        Coordinates of `layer`: `kind` ("sdpa", "softmax", "talking heads", "channel"), `n_heads`,
        `n_windows`, `n_queries` and `n_keys` in a window, `n_prefix`, `grid_height`,
        `grid_width`. A layer called again in the same pass is "name#2". Layers with fewer heads,
        queries or keys than others have NaN there, and so have samples of shorter sequences than
        others: `n_queries` and `n_keys` are then those of the longest. Attributes: `queries`, as
        "auto" chose; `n_samples`; `seed`, where samples were drawn.

    Raises:
        TypeError: If `data` is none of the above, or does not fit the model's forward.
        ValueError: If an argument is wrong, if no attention was seen, if inputs are NaN, or if a
            layer uses a kernel that cannot be read.
        RuntimeError: If what was read does not reproduce a layer's own output.

    Examples:
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> tokens = torch.zeros(1, 4, 8)  # equal tokens, so attention is uniform
        >>> result = capture(model, tokens, queries=[0])
        >>> result["peak"].values.tolist(), result["gini"].values.tolist()
        ([[[[0.25], [0.25]]]], [[[[0.0], [0.0]]]])
    """
    check_module(model)
    settings = Settings(
        layers=layers,
        queries=queries,
        keys=keys,
        maps=maps,
        threshold=threshold,
        mass=mass,
        prefix=prefix,
        chunk=chunk,
    )
    batches, drawn_by = _take_inputs(model, data, samples, seed, batch_size)

    try:
        recording = _run(model, batches, settings)
    except ClassTokenNotSeenError:
        # Its class token joins where nothing is attended to, as far as could be seen.
        if settings.queries != "auto":
            raise
        recording = _run(model, batches, replace(settings, queries="mean"))

    recording.more_attributes = drawn_by
    result = recording.dataset()
    _check_inputs(result, batches)
    return result


def _run(model: nn.Module, batches: list[Any], settings: Settings) -> Recording:
    with (
        evaluating(model),
        preserving_rng(devices_of(model)),
        watching(model, settings) as recording,
    ):
        for inputs in batches:
            output = call_model(model, inputs)

            # Outputs of many positions, as of language models, would fill the memory.
            if len(batches) == 1 or logits_of(output).dim() <= 2:
                recording.outputs.append(output)

    if len(batches) > 1:
        shapes = {logits_of(output).shape[1:] for output in recording.outputs}
        if len(shapes) > 1 or len(recording.outputs) < len(batches):
            recording.outputs = []
    return recording


def _take_inputs(
    model: nn.Module, data: Any, samples: int | None, seed: int, batch_size: int | None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the inputs of each forward pass, and what decided about them, as attributes."""
    is_one_batch = is_whole_batch(data, needs_targets=False)
    is_default = isinstance(samples, AtMost) and batch_size is None
    if is_one_batch and is_default and _is_plain_call(model, data):
        device = device_of(model)
        return [tree_map_only(Tensor, lambda tensor: tensor.to(device), data)], {}

    # A batch that is given as such is taken whole, in one pass, unless something else is asked for.
    if is_one_batch and isinstance(samples, AtMost):
        samples = None
    if not is_one_batch and batch_size is None:
        batch_size = _SAMPLES_AT_A_TIME
    batches = take(data, samples, seed, model=model, batch_size=batch_size, needs_targets=False)
    return [inputs for inputs, _ in batches], {"seed": seed}


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


def _check_inputs(result: xr.Dataset, batches: list[Any]) -> None:
    # Asked only where a sample is undefined throughout: to look at all inputs takes its time.
    entropy = result.variables["entropy"].values
    if np.isnan(entropy).reshape(len(entropy), -1).all(1).any():
        check_no_nan([(inputs, None) for inputs in batches])
