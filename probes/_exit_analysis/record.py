from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from probes._exit_analysis.flops import FlopCounter
from probes._exit_analysis.one_pass import rows_of, run_exits
from probes._exit_analysis.token_statistics import MEASURES
from probes._exit_training.attach import NormLike, resolve_heads
from probes._exit_training.forward_trace import Trace, name_layers, trace
from probes._exit_training.losses import Exits
from probes._model.check_model import check_model
from probes._model.distributed import resharding
from resonance_toolkit import evaluating, is_sharded, preserving, provenance, take, unwrap

_LOGITS = 2**24  # of the model itself, in one batch
_BATCH = 256

HeadOf = Callable[[Tensor], Tensor]


@torch.no_grad()
def record_exits(
    model: nn.Module,
    data: Any,
    layers: str | Sequence[str],
    *,
    head: str | HeadOf | Exits = "model",
    norm: NormLike = "auto",
    depths: Sequence[float] | None = None,
    samples: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Run a model once over data and keep, for every token and exit, what routing needs to know.

    Logits are never kept beyond a batch of the model's own: what stays is about 65 bytes per token
    and exit. The data themselves are held in memory. The last layer's numbers come from the model's
    own output, the others' from the head. Under `fully_shard` each rank records its own data, in as
    many batches as every other.

    Args:
        model: A classifier or a language model, as for `attach_exits`; run in eval mode.
        data: Pairs (inputs, targets) in any form that `resonance.take` knows: `(x, y)` tensors, a
            Dataset, a DataLoader, a list of batches. Targets are the right class for each place of
            the logits, `(sample,)` or, already shifted, `(sample, token)`; -100 does not count.
        layers: Names or patterns in forward order, the model's last layer last.
        head: `"model"`, a callable from a layer's output to logits, or the `Exits` that the model
            was trained with.
        norm: As for `attach_exits`.
        depths: How far through the model each layer is, the last 1. If not given, layers of a
            numbered family (`blocks.0`, ...) count their kin, others count those listed.
        samples: How many samples are drawn; None takes all.
        batch_size: Samples run together; as many as memory for logits allows if not given.
        seed: Decides which samples are drawn.

    Returns:
        Dataset over `layer` and `token`, all that count, in order, with `cross_entropy (layer,
        token)`; `prediction (layer, token)`, the likeliest class; `confidence (measure, layer,
        token)`, from 0 to 1: `max softmax`; `margin`, its distance to the second largest
        probability; `entropy`, 1 - entropy / ln(classes); `cosine` of the layer's input and output
        (negative: 0; NaN where shapes differ); `patience`, the share of the listed layers that
        agree in a row up to this one. `flops (layer)` of one sample until the layer's end, and
        `head_flops (layer)` from there to logits. Coordinates say each token's `sample`, `position`
        and `target`, and each layer's `depth`.

    Raises:
        ValueError: If an argument does not fit, or there are no data.

    Examples:
        >>> layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
        >>> x, y = torch.randn(5, 8), torch.tensor([0, 1, 2, 0, 1])
        >>> record = record_exits(nn.Sequential(*layers), (x, y), ["1", "3"])
        >>> dict(record["cross_entropy"].sizes)
        {'layer': 2, 'token': 5}
    """
    check_model(model)
    _check_count("batch_size", batch_size)
    names, root = name_layers(model, layers), unwrap(model)
    if len(names) < 2:
        raise ValueError(f"`layers`: expected an exit and the last layer at least, got {names}")
    ((inputs, targets),) = take(data, samples, seed, model=model, batch_size=2**40)
    seen = trace(root, names, rows_of(inputs, 0, 1))
    places = _check_depths(depths, names) if depths is not None else seen.depths()
    _check_samples_first(seen)
    heads, way = _heads(root, seen, head, norm)
    step = batch_size or max(1, min(_BATCH, _LOGITS // seen.logits[0].numel()))
    # Values too: nothing forbids a model to write to its buffers in eval mode.
    values = not is_sharded(root)
    with preserving(model, values=values), evaluating(model), resharding(root):
        costs = _flops(seen, heads)
        found = run_exits(root, names, heads, inputs, targets, seen, step)
    return xr.Dataset(
        {
            "cross_entropy": (("layer", "token"), found.loss, _NAMES["cross_entropy"]),
            "prediction": (("layer", "token"), found.prediction, _NAMES["prediction"]),
            "confidence": (("measure", "layer", "token"), found.confidence, _NAMES["confidence"]),
            "flops": ("layer", costs[0], _NAMES["flops"]),
            "head_flops": ("layer", costs[1], _NAMES["head_flops"]),
        },
        coords={
            "layer": ("layer", names, {"long_name": "exit"}),
            "measure": ("measure", list(MEASURES), {"long_name": "confidence measure"}),
            "token": ("token", np.arange(len(found.target)), {"long_name": "token that counts"}),
            "sample": ("token", found.sample, {"long_name": "sample of the data"}),
            "position": ("token", found.position, {"long_name": "position in the sample"}),
            "target": ("token", found.target, {"long_name": "right class"}),
            "depth": ("layer", places, {"long_name": "depth, the whole model being 1"}),
        },
        attrs=provenance(
            "probes.record_exits",
            model,
            head=way,
            classes=seen.logits.shape[-1],
            n_samples=len(targets),
            samples=samples,
            seed=seed,
        ),
    )


_NAMES = {
    "cross_entropy": {"long_name": "cross-entropy", "units": "nat"},
    "prediction": {"long_name": "likeliest class"},
    "confidence": {"long_name": "confidence"},
    "flops": {"long_name": "floating-point operations of a sample until the layer's end"},
    "head_flops": {"long_name": "floating-point operations of a sample from there to logits"},
}


def _heads(
    root: nn.Module, seen: Trace, head: str | HeadOf | Exits, norm: NormLike
) -> tuple[dict[str, HeadOf], str]:
    """For each exit, a function from its layer's output to logits; and its description.

    The last layer has one where it is known to give the model's own output.
    """
    if isinstance(head, Exits):
        if head.layers != seen.layers:
            raise ValueError(f"`head`: expected exits at {seen.layers}, got some at {head.layers}")
        return {name: partial(head.logits, name, root=root) for name in head.layers[:-1]}, "trained"
    if head == "own":
        raise ValueError("`head`: own heads are trained; give the Exits that hold them")
    points, _ = resolve_heads(root, seen, head, norm, 0)
    way = next(iter(points.values())).head
    heads: dict[str, HeadOf] = {k: partial(point.head, root) for k, point in points.items()}
    if head == "model" and norm == "auto":
        heads[seen.layers[-1]] = partial(way, root)
    return heads, str(way)


def _flops(seen: Trace, heads: dict[str, HeadOf]) -> list[list[float]]:
    body, last = [float(seen.flops[name]) for name in seen.layers], []
    for name in seen.layers[:-1]:
        with FlopCounter() as counter:
            heads[name](seen.hidden[name])
        last.append(float(counter.get_total_flops()))
    return [body, [*last, float(seen.total_flops) - body[-1]]]


def _check_samples_first(seen: Trace) -> None:
    for name, hidden in seen.hidden.items():
        if len(hidden) != 1:  # the pass had one sample
            raise ValueError(
                f"`layers` at {name!r}: expected an output with the samples first, got shape "
                f"{tuple(hidden.shape)} for one sample"
            )


def _check_depths(depths: Sequence[float], names: list[str]) -> list[float]:
    found = [float(depth) for depth in depths]
    rising = all(a < b for a, b in pairwise([0.0, *found]))
    if len(found) != len(names) or not rising or found[-1] != 1:
        raise ValueError(
            f"`depths`: expected a rising number for each of {', '.join(names)}, the last 1, got "
            f"{found}"
        )
    return found


def _check_count(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (whole and value >= 1):  # type: ignore[operator]  # an int then
        raise ValueError(f"`{name}`: expected a whole number of at least 1, got {value!r}")
