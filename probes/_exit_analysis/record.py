from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import xarray as xr
from torch import nn

from probes._exit_analysis.exit_heads import (
    ExitHeads,
    HeadFunction,
    count_head_flops,
    resolve_exit_heads,
)
from probes._exit_analysis.one_pass import TokenRecords, run_exits
from probes._exit_analysis.token_statistics import MEASURES
from probes._exit_training.forward_trace import ForwardTrace, name_layers, trace_forward
from probes._exit_training.losses import Exits
from probes._exit_training.reports import layer_coordinate
from probes._exit_training.resolve_heads import NormOption
from probes._exit_training.targets import as_class_indices
from probes._model.check_model import check_model
from probes._model.cut_batches import slice_samples
from resonance_toolkit import (
    check_no_nan,
    check_whole,
    evaluating,
    is_sharded,
    preserving,
    provenance,
    resharding,
    take,
    unwrap,
)


@torch.no_grad()
def record_exits(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str] | None = None,
    *,
    head: Literal["model"] | HeadFunction | Exits = "model",
    norm: NormOption = "auto",
    depths: Sequence[float] | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Run a model once over data, and record what early-exit analysis needs per token and exit.

    Logits are not kept beyond one batch; the record takes about 65 bytes per token and exit. The
    data themselves are held in memory. For the last layer, the numbers come from the model's own
    output; for the other layers, from the head. Under `fully_shard`, each rank records its own
    data, and all ranks must have the same number of batches.

    Args:
        model: A classifier or a language model, as for `attach_exits`; run in eval mode.
        data: Pairs (inputs, targets), or mappings with `labels`, in any form that `resonance.take`
            accepts: `(x, y)` tensors, a Dataset, a DataLoader, a list of batches. Targets are the
            right class for each position of the logits, `(sample,)` or, already shifted, `(sample,
            token)`; -100 does not count. Batches of texts may differ in length.
        layers: Names or patterns in forward order, the model's last layer last. None takes those of
            the `Exits` in `head`, or else the model's repeated blocks (in an encoder-decoder, the
            decoder's). The attribute `layers_reason` says why; see `resonance.find_blocks`.
        head: `"model"`, a callable from a layer's output to logits, or the `Exits` that the model
            was trained with.
        norm: `"auto"`: what the model itself has between its last layer and its head. None: only
            pooling. Or a callable that replaces it. `Exits` bring their own.
        depths: How far through the model each layer is, as a share; 1 for the last. If not given,
            numbered layers (`blocks.0`, ...) are spread evenly over all layers so numbered, others
            over the layers listed.
        samples: How many samples are drawn; None takes all.
        batch_size: How many samples run together; if not given, as many as the logits' memory
            allows.
        seed: Determines which samples are drawn.

    Returns:
        Dataset over `layer` and `token` (all tokens that count, in order) with

        - `cross_entropy (layer, token)`, and `prediction (layer, token)`, the likeliest class;
        - `confidence (measure, layer, token)`, from 0 to 1. The measures are `max softmax`;
          `margin`, its distance to the second largest probability; `entropy`, 1 - entropy /
          ln(classes); `cosine` of the layer's input and output (0 if negative, NaN if shapes
          differ); and `patience`, the share of the listed layers that agree in a row up to this
          one;
        - `flops (layer)` of the first sample up to the end of the layer, and `head_flops (layer)`
          from there to the logits.

        Coordinates give each token's `sample`, `position` and `target`, and each layer's `depth`.
        The attribute `n_samples` is the number of samples.

    Raises:
        TypeError: If targets are not tensors.
        ValueError: If an argument does not fit, or there are no data.

    Examples:
        >>> layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
        >>> x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(nn.Sequential(*layers), (x, y), ["1", "3"])
        >>> dict(record["cross_entropy"].sizes)
        {'layer': 2, 'token': 5}
    """
    check_model(model)
    if batch_size is not None:
        batch_size = check_whole("batch_size", batch_size)
    if layers is None and isinstance(head, Exits):
        layer_names, reason = head.layers, head.reason
    else:
        layer_names, reason = name_layers(model, layers)
    if len(layer_names) < 2:
        raise ValueError(
            f"`layers`: expected an exit and the last layer at least, got {layer_names}"
        )

    # Not yet in batches: how many samples fit into memory is known only after the trace.
    pieces = take(data, samples, seed, model=model, batch_size=None)
    first_sample = slice_samples(pieces[0][0], 0, 1)

    # One sample, so that operations are counted per sample.
    root = unwrap(model)
    forward_trace = trace_forward(root, layer_names, first_sample)
    _check_samples_first(forward_trace)
    if bool(forward_trace.logits.isnan().any()):
        check_no_nan(pieces)  # no head could be proved to be the model's own
    pieces = [(x, as_class_indices(y, forward_trace.logits)) for x, y in pieces]
    if depths is None:
        relative_depths = forward_trace.relative_depths()
    else:
        relative_depths = _check_depths(depths, layer_names)

    heads, head_description = resolve_exit_heads(root, forward_trace, head, norm)

    # Values too: nothing forbids a model to write to its buffers in eval mode.
    values = not is_sharded(root)
    with preserving(model, values=values), evaluating(model), resharding(root):
        head_flops = count_head_flops(heads)
        try:
            records = run_exits(heads, pieces, batch_size)
        except ValueError:
            check_no_nan(pieces)  # the likelier cause of a head that does not fit
            raise
    if np.isnan(records.loss).any():
        check_no_nan(pieces)

    dataset = _as_dataset(records, heads, head_flops, relative_depths)
    return dataset.assign_attrs(
        provenance(
            "probes.record_exits",
            model,
            head=head_description,
            layers_reason=reason or "named in the call",
            loss="cross_entropy",
            classes=forward_trace.logits.shape[-1],
            n_samples=sum(len(targets) for _, targets in pieces),
            seed=seed,
        )
    )


def _as_dataset(
    records: TokenRecords,
    heads: ExitHeads,
    head_flops: list[float],
    relative_depths: list[float],
) -> xr.Dataset:
    flops = [float(heads.forward_trace.flops[name]) for name in heads.layers]
    by_layer = ("layer", "token")

    return xr.Dataset(
        {
            "cross_entropy": (by_layer, records.loss, _ATTRIBUTES["cross_entropy"]),
            "prediction": (by_layer, records.prediction, _ATTRIBUTES["prediction"]),
            "confidence": (("measure", *by_layer), records.confidence, _ATTRIBUTES["confidence"]),
            "flops": ("layer", flops, _ATTRIBUTES["flops"]),
            "head_flops": ("layer", head_flops, _ATTRIBUTES["head_flops"]),
        },
        coords={
            "layer": layer_coordinate(heads.layers),
            "measure": ("measure", list(MEASURES), {"long_name": "confidence measure"}),
            "token": ("token", np.arange(len(records.target)), {"long_name": "token that counts"}),
            "sample": ("token", records.sample, {"long_name": "sample of the data"}),
            "position": ("token", records.position, {"long_name": "position in the sample"}),
            "target": ("token", records.target, {"long_name": "right class"}),
            "depth": ("layer", relative_depths, {"long_name": "depth, the whole model being 1"}),
        },
    )


_ATTRIBUTES = {
    "cross_entropy": {"long_name": "cross-entropy", "units": "nat"},
    "prediction": {"long_name": "likeliest class"},
    "confidence": {"long_name": "confidence"},
    "flops": {"long_name": "floating-point operations of a sample until the layer's end"},
    "head_flops": {"long_name": "floating-point operations of a sample from there to logits"},
}


def _check_samples_first(forward_trace: ForwardTrace) -> None:
    for name, hidden in forward_trace.hidden.items():
        if len(hidden) != 1:  # the pass had one sample
            raise ValueError(
                f"`layers` at {name!r}: expected an output with the samples first, got shape "
                f"{tuple(hidden.shape)} for one sample"
            )


def _check_depths(depths: Sequence[float], layers: list[str]) -> list[float]:
    numbers = [float(depth) for depth in depths]

    is_rising = all(a < b for a, b in pairwise([0.0, *numbers]))
    if len(numbers) != len(layers) or not is_rising or numbers[-1] != 1:
        raise ValueError(
            f"`depths`: expected a rising number for each of {', '.join(layers)}, the last 1, got "
            f"{numbers}"
        )
    return numbers
