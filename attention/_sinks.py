from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from attention._activations import watching_activations
from attention._passes import check_inputs, run_batches, take_inputs
from attention._settings import Settings
from resonance_toolkit import (
    AtMost,
    check_module,
    check_positive,
    check_share,
    find_blocks,
    provenance,
    unwrap,
)

Array = NDArray[np.float64]


@torch.no_grad()
def sinks(
    model: nn.Module,
    data: Any,
    *,
    layers: str | Sequence[str] | None = None,
    threshold: float = 0.3,
    massive: float = 1000.0,
    chunk: int = 64,
    samples: int | None = AtMost(500),
    batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Find attention sinks (keys that a head attends to whatever the query) and their activations.

    The weight of a key is its mean attention over the queries that can see it, if at least half of
    all queries can. A head has a sink if the largest such weight exceeds `threshold`. The first
    position, where language models have theirs (Gu et al. 2025), is also counted by itself. Sinks
    occur together with massive activations (Sun et al. 2024). These are measured at the input of
    each block, as the largest magnitude in a token divided by the median magnitude of the sample.

    Args:
        model: Any module with attention; left as it was found.
        data: Inputs alone, a pair `(inputs, targets)`, a mapping with `labels`, or a source of
            these, as for `attention.capture`.
        layers: Names or patterns; attention inside these layers is measured. None measures all.
        threshold: A key is a sink if its mean weight exceeds this.
        massive: An activation is massive if its ratio is at least this.
        chunk: How many queries are computed at a time, to bound memory.
        samples: How many samples to draw from a source, at most; None takes all. A single batch is
            used whole, unless you give a number.
        batch_size: Samples in a forward pass. None: 100 for a source, all for a single batch.
        seed: Determines which samples are drawn.

    Returns:
        Dataset with

        - `sink_weight` and `sink_key (sample, layer, head)`: the largest weight and its position;
          `first_weight`, that of the first position;
        - `sink_share (layer)`: share of samples and heads with a sink; `first_sink_share`, with one
          at the first position;
        - `sink_activation (sample, layer, head)`: the ratio of activations at `sink_key`;
          `largest_activation (sample, layer)`, at any position; `massive_share (layer)`, the share
          of samples with a massive one. NaN if no block of the model holds the layer, or if the
          tokens of the block are not the keys.

    Raises:
        TypeError, ValueError, RuntimeError: As `attention.capture`.

    Examples:
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> tokens = torch.zeros(1, 4, 8)  # equal tokens: attention is uniform, and has no sink
        >>> found = sinks(model, tokens)
        >>> found["first_weight"].values.tolist(), found["sink_share"].item()
        ([[[0.25, 0.25]]], 0.0)
    """
    check_module(model)
    threshold = check_share("threshold", threshold)
    massive = check_positive("massive", massive)

    # All keys, also class tokens and registers, which are where vision models have their sinks.
    settings = Settings(
        layers=layers,
        queries="mean",
        keys="all",
        maps=True,
        threshold=0.1,
        mass=0.9,
        prefix=None,
        chunk=chunk,
        among_seeing_queries=True,
    )
    batches, drawn_by = take_inputs(model, data, samples, seed, batch_size)
    with watching_activations(_blocks(model)) as ratios_by_block:
        recording = run_batches(model, batches, settings)
    captured = recording.dataset()
    check_inputs(captured, batches)

    # As arrays `(sample, layer, head, key)`: labels come with the result.
    weight = captured["weight"].values
    n_keys = captured["n_keys"].values
    ratio = _ratios_of_layers(weight.shape, captured["layer"].values, n_keys, ratios_by_block)

    is_seen = ~np.isnan(weight).all(-1)
    key = np.where(np.isnan(weight), -np.inf, weight).argmax(-1)
    ratio_of_heads = np.broadcast_to(ratio[:, :, None], weight.shape)
    largest_ratio = np.where(np.isnan(ratio), -np.inf, ratio).max(-1)

    by_head = {
        "sink_weight": (_pick(weight, key), "largest mean attention on one key"),
        "sink_key": (np.where(is_seen, key, np.nan), "position of that key"),
        "first_weight": (weight[..., 0], "mean attention on the first key"),
        "sink_activation": (
            np.where(is_seen, _pick(ratio_of_heads, key), np.nan),
            "largest over median activation, at the sink",
        ),
    }
    largest_activation = np.where(np.isfinite(largest_ratio), largest_ratio, np.nan)
    by_layer = {
        "sink_share": (by_head["sink_weight"][0], threshold, "share of heads with a sink"),
        "first_sink_share": (
            by_head["first_weight"][0],
            threshold,
            "share of heads with a sink at the first position",
        ),
        "massive_share": (
            largest_activation,
            massive,
            "share of samples with a massive activation",
        ),
    }

    dims = "sample", "layer", "head"
    variables: dict[str, Any] = {
        name: (dims, values, {"long_name": text}) for name, (values, text) in by_head.items()
    }
    variables["largest_activation"] = (
        dims[:2],
        largest_activation,
        {"long_name": "largest over median activation"},
    )
    variables |= {
        name: ("layer", _share_above(values, limit), {"long_name": text})
        for name, (values, limit, text) in by_layer.items()
    }
    return xr.Dataset(
        variables,
        # Written out anew: those of a capture are shared, and pandas notes every use.
        coords={
            name: (coordinate.dims, coordinate.values.copy(), coordinate.attrs)
            for name, coordinate in captured.coords.items()
            if set(coordinate.dims) <= set(dims)
        },
        attrs=provenance(
            "attention.sinks",
            model,
            threshold=threshold,
            massive=massive,
            n_samples=len(weight),
            **drawn_by,
        ),
    )


def _blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The modules between which a model carries its tokens on: repeated blocks, items of lists."""
    items = {
        f"{path}.{name}" if path else name: item
        for path, module in unwrap(model).named_modules()
        if isinstance(module, nn.ModuleList)
        for name, item in module.named_children()
    }
    try:
        return items | find_blocks(model)
    except ValueError:
        return items


def _pick(values: Array, key: NDArray[np.intp]) -> Array:
    """The value at one key of each head."""
    picked: Array = np.take_along_axis(values, key[..., None], -1)[..., 0]
    return picked


def _share_above(values: Array, limit: float) -> Array:
    """The share of what is defined in each layer, `(sample, layer, ...)`, that is above a limit."""
    by_layer = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)
    n_defined = (~np.isnan(by_layer)).sum(1)
    share: Array = (by_layer > limit).sum(1) / np.where(n_defined > 0, n_defined, np.nan)
    return share


def _ratios_of_layers(
    shape: tuple[int, ...],
    layers: NDArray[np.str_],
    n_keys: NDArray[np.int64],
    by_block: dict[str, list[Array]],
) -> Array:
    """Ratios of activations `(sample, layer, key)`, of the block that each layer is in.

    Args:
        shape: Of the weights, `(sample, layer, head, key)`.
        layers: Names of the layers.
        n_keys: Keys of each.
        by_block: What each block has recorded, batch by batch.
    """
    n_samples, n_layers, _, most_keys = shape
    ratios = np.full((n_samples, n_layers, most_keys), np.nan)

    for index, layer in enumerate(layers.tolist()):
        blocks_around = [name for name in by_block if layer == name or layer.startswith(f"{name}.")]
        parts = by_block[max(blocks_around, key=len)] if blocks_around else []

        # Windows, latents and the like are other tokens than the block's.
        is_alike = sum(map(len, parts)) == n_samples
        if not is_alike or max(part.shape[1] for part in parts) != n_keys[index]:
            continue

        # Batches of shorter sequences have NaN at the end.
        start = 0
        for part in parts:
            ratios[start : start + len(part), index, : part.shape[1]] = part
            start += len(part)
    return ratios
