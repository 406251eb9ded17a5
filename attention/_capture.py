from collections.abc import Sequence
from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attention._settings import KeyChoice, QueryChoice, Settings
from attention._watching import watching
from resonance_toolkit import call_model, check_module, device_of, evaluating, preserving_rng


@torch.no_grad()
def capture(
    model: nn.Module,
    x: Any,
    *,
    layers: str | Sequence[str] | None = None,
    queries: QueryChoice | Sequence[int] = "cls",
    keys: KeyChoice = "patches",
    maps: bool = False,
    threshold: float = 0.1,
    mass: float = 0.9,
    prefix: int | None = None,
    chunk: int = 64,
) -> xr.Dataset:
    """Run a model once in eval mode, and measure the attention of all its layers.

    Nothing in the model changes: calls of `scaled_dot_product_attention`, and of a softmax over the
    last axis that goes into a product of matrices, are seen as torch executes them. A weight is
    the softmax itself: before dropout, and before heads are mixed (kind "talking heads").

    Args:
        model: Any module with attention; left as it was found.
        x: What the model is called with: one tensor, a tuple of arguments, or a mapping of named
            ones. Samples come first.
        layers: Names or patterns; attention inside these layers is kept. None keeps all.
        queries: "cls" the class token's row; "mean" the mean over all rows, of each statistic and
            of the maps; "all"; or indices, counted through the windows one after another. A layer
            without a row asked for has NaN there.
        keys: "patches" leaves class, distillation and register tokens out, and lets the rest of
            the row add up to one; "all" keeps them.
        maps: Also keep the weights: 8 bytes each, `n_queries * n_keys` for each sample, layer and
            head if `queries="all"`.
        threshold: A key counts in `coverage` from this share of the row's peak.
        mass: What share of the attention `mass_coverage` gathers.
        prefix: How many tokens come before the patches, the class token first. None finds out.
        chunk: "all" and "mean" compute this many queries at a time, to bound memory.

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
          tensor).

        Coordinates of `layer`: `kind` ("sdpa", "softmax", "talking heads", "channel"), `n_heads`,
        `n_windows`, `n_queries` and `n_keys` in a window, `n_prefix`, `grid_height`,
        `grid_width`. A layer called again in the same pass is "name#2". Layers with fewer heads,
        queries or keys than others have NaN there. The attribute `n_samples` counts the samples.

    Raises:
        ValueError: If an argument is wrong, if no attention was seen, or if a layer uses a kernel
            that cannot be read.
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

    device = device_of(model)
    x = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, x)

    with evaluating(model), preserving_rng([device]), watching(model, settings) as recording:
        recording.output = call_model(model, x)
    return recording.dataset()
