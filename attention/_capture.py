from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import xarray as xr
from torch import nn

from attention._passes import check_inputs, run_batches, take_inputs
from attention._recording import ClassTokenNotSeenError
from attention._settings import KeyChoice, QueryChoice, Settings
from resonance_toolkit import AtMost, check_module


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

    The model is not changed. While torch executes it, this verb sees every call of
    `scaled_dot_product_attention`, and every softmax over the last axis that goes into a matrix
    product. A weight is the value of the softmax, before dropout, and before heads are mixed (kind
    "talking heads").

    Args:
        model: Any module with attention; left as it was found.
        data: Inputs alone: a tensor, or a mapping of keywords, such as a tokenizer returns. Or a
            pair `(inputs, targets)` or a mapping with `labels`, whose targets are ignored. Or a
            source of these: a Dataset, a DataLoader, a list of batches. Samples are the first axis.
            For several positional arguments, pass a tuple inside a pair, `((x1, x2), None)`,
            because two arrays are understood as inputs and targets; a tuple of three or more
            arrays works without a pair.
        layers: Names or patterns; attention inside these layers is measured. None measures all.
        queries: Which rows of the attention to keep. "cls": the class token's. "mean": the mean
            over all rows, of each statistic and of the maps. "auto": "cls" if there is a class
            token (a parameter of that name, or the first token of a text encoder such as Bert),
            else "mean". "all": every row. Or indices, counted through all windows in turn. A row
            that a layer does not have is NaN.
        keys: "patches" leaves out class, distillation and register tokens, and rescales the rest
            of the row to sum to one; "all" keeps them.
        maps: Also keep the weights: 8 bytes each, `n_queries * n_keys` for each sample, layer and
            head if `queries="all"`.
        threshold: A key counts in `coverage` if its weight is at least this share of the peak.
        mass: The share of the attention that `mass_coverage` collects.
        prefix: How many tokens come before the patches, the class token first. None: found
            automatically.
        chunk: "all" and "mean" compute this many queries at a time, to bound memory.
        samples: How many samples to draw from a source, at most; None takes all. A single batch is
            used whole, unless you give a number.
        batch_size: Samples in a forward pass. None: 100 for a source, all for a single batch.
        seed: Determines which samples are drawn.

    Returns:
        Dataset with the statistics that `attention.statistics` defines, `(sample, layer, head)`
        each, then `query` if `queries` is "all" or indices (`head_similarity` has no head), and:

        - `distance`: mean distance from the query to the keys, weighted by attention, in steps of
          the grid of queries (of a window, of the sequence). NaN for the class token, and
          between two sequences. Uniform attention gives the mean distance to all keys.
        - `prefix_mass`: attention on the tokens before the patches, NaN if there are none.
        - `weight (..., key)` with `maps`; NaN if there is no such key or a mask hides it (its
          weight is below exp(-80) of the largest).
        - `prediction (sample, output)`: what the model returned (its logits, or else its first
          tensor); after several forward passes, only if that has one row per sample.

        If the model is called with a padding mask (`attention_mask`, `src_key_padding_mask`, ...),
        queries that are padding have no statistics: they are NaN with "all" and indices, and enter
        no mean. Keys that are padding are hidden by the model's own mask.

        Coordinates of `layer`: `kind` ("sdpa", "softmax", "talking heads", "channel"), `n_heads`,
        `n_windows`, `n_queries` and `n_keys` in a window, `n_prefix`, `grid_height`,
        `grid_width`. The second call of a layer in a pass is "name#2". If layers differ in their
        numbers of heads, queries or keys, or samples in their lengths, missing values are NaN;
        `n_queries` and `n_keys` are then those of the longest sample. Attributes: `queries`, as
        "auto" chose; `n_samples`; `seed`, if samples were drawn.

    Raises:
        TypeError: If `data` is none of the above, or does not fit the model's forward.
        ValueError: If an argument is wrong, if no attention was seen, if inputs are NaN, or if a
            layer uses a kernel that cannot be read.
        RuntimeError: If the attention that was read does not reproduce a layer's own output.

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
    batches, drawn_by = take_inputs(model, data, samples, seed, batch_size)

    try:
        recording = run_batches(model, batches, settings)
    except ClassTokenNotSeenError:
        # Its class token joins where nothing is attended to, as far as could be seen.
        if settings.queries != "auto":
            raise
        recording = run_batches(model, batches, replace(settings, queries="mean"))

    recording.more_attributes = drawn_by
    result = recording.dataset()
    check_inputs(result, batches)
    return result
