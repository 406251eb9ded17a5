from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention._call import Call
from attention._layout import Layout
from attention._measure import MEASURES, Meaning, count_below, measure_seen, rising

# A weight this far below the largest of its row, exp(-80), is a masked one: Swin's mask adds -100.
_HIDDEN = 1.8e-35
Array = NDArray[np.float64]
STATISTICS = MEASURES | {
    "distance": Meaning("mean attention distance", "token"),
    "prefix_mass": Meaning("attention on class and register tokens"),
}


@dataclass(frozen=True)
class Settings:
    """What `capturing` was asked for."""

    queries: str | list[int]
    keys: str
    maps: bool
    threshold: float
    mass: float
    prefix: int
    chunk: int


@dataclass
class Reading:
    """What one attention call gave: axes `(sample, head, row)` and, of maps, `key` after them.

    `logits` of few rows wait until all layers are known, so that equal ones are finished in one
    go; `values` and `weights` are the finished form. `values` has an axis of `STATISTICS` first.
    """

    kind: str
    layout: Layout
    windows: int
    shape: tuple[int, int, int, int]
    logits: Tensor | None = None
    rows: list[int] = field(default_factory=list)
    values: Array = field(init=False)
    weights: Array = field(init=False)


def read(
    call: Call, layout: Layout, samples: int, settings: Settings, *, check: bool
) -> tuple[Reading, Callable[[], Tensor] | None]:
    """Compute the rows asked for, and nothing else, of one attention call.

    Returns:
        The reading, and what tells how far it is from what the layer used, if that can be checked.
    """
    reading = Reading(call.kind, layout, call.shape[0] // samples, call.shape)
    take = _read_all if settings.queries in ("all", "mean") else _read_few
    row, logits = take(call, reading, samples, settings)
    if not check or call.mismatch is None:
        return reading, None
    return reading, call.mismatch(logits.softmax(-1), slice(row, row + 1))


def finish(readings: list[Reading], settings: Settings) -> None:
    """Turn the logits that wait into weights and statistics, all equal layers at once."""
    waiting: dict[object, list[Reading]] = {}
    for reading in readings:
        if (logits := reading.logits) is not None:
            form = (logits.shape, logits.dtype, logits.device, reading.layout, tuple(reading.rows))
            waiting.setdefault(form, []).append(reading)
    for alike in waiting.values():
        logits = torch.stack([reading.logits for reading in alike])  # type: ignore[misc]
        with full_precision(logits.device):
            share, values = _describe(logits, alike[0].layout, alike[0].rows, settings)
        array = _array(values)
        maps = _array(torch.where(_there(share), share, torch.nan)) if settings.maps else None
        for index, reading in enumerate(alike):
            reading.logits = None
            reading.values = array[:, index]
            if maps is not None:
                reading.weights = maps[index]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Keep autocast from our own arithmetic."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _read_few(call: Call, reading: Reading, samples: int, settings: Settings) -> tuple[int, Tensor]:
    """Keep the logits of the class token, or of the rows given; NaN where the layer has none.

    Returns:
        A row, and its logits in the first group, to be checked.
    """
    n_queries = call.shape[2]
    n_rows = reading.windows * n_queries
    wanted = settings.queries
    if not isinstance(wanted, list):
        wanted = [0 if reading.layout.prefix else n_rows]
    there = [-n_rows <= row < n_rows for row in wanted]
    rows = [row % n_rows if known else 0 for row, known in zip(wanted, there, strict=True)]
    queries = [row % n_queries for row in rows]
    single = slice(queries[0], queries[0] + 1)
    device = call.device  # whatever the default one is
    logits = call.logits(single if len(queries) == 1 else torch.tensor(queries, device=device))
    first = logits[:1, :, :1]
    if reading.windows > 1:
        logits = logits.unflatten(0, (samples, reading.windows))
        windows = torch.tensor([row // n_queries for row in rows], device=device)
        places = torch.arange(len(rows), device=device)
        logits = logits[:, windows, :, places].movedim(0, 2)
    if not all(there):
        absent = torch.tensor([not known for known in there], device=device)
        logits = logits.masked_fill(absent[:, None], torch.nan)
    # A copy: the model may write to what it computed, and its map should go when it is done.
    reading.logits, reading.rows = logits.clone(), queries
    return queries[0], first


def _read_all(call: Call, reading: Reading, samples: int, settings: Settings) -> tuple[int, Tensor]:
    """Take the statistics of all rows, some queries at a time, so that no whole map is needed.

    Returns:
        A row, and its logits in the first group, to be checked.
    """
    n_queries = call.shape[2]
    pieces: list[Tensor] = []
    maps: list[Tensor] = []
    total: Tensor | float = 0.0
    seen: Tensor | float = 0.0
    for start in range(0, n_queries, settings.chunk):
        stop = min(start + settings.chunk, n_queries)
        logits = call.logits(slice(start, stop)).unflatten(0, (samples, reading.windows))
        share, values = _describe(logits, reading.layout, range(start, stop), settings)
        pieces.append(values)
        if settings.maps and settings.queries == "all":
            maps.append(torch.where(_there(share), share, torch.nan).cpu())  # where there is room
        elif settings.maps:
            total = total + share.sum((1, 3))
            seen = seen + _there(share).sum((1, 3))
    # One by one: together they may be larger than anything the model makes.
    parts = zip(*pieces, strict=True)  # of a statistic: (sample, window, head, query) each
    rows = [torch.cat(part, -1).movedim(1, -2).flatten(-2) for part in parts]
    mean = settings.queries == "mean"
    reading.values = np.stack(
        [_array(row.nanmean(-1, keepdim=True) if mean else row) for row in rows]
    )
    if maps:
        reading.weights = _array(torch.cat(maps, -2).movedim(1, 2).flatten(2, 3))
    elif settings.maps and isinstance(seen, Tensor):
        mean_row = total / (reading.windows * n_queries)
        reading.weights = _array(torch.where(seen > 0, mean_row, torch.nan)[:, :, None])
    return n_queries - 1, logits[0, :1, :, -1:]


def _describe(
    logits: Tensor, layout: Layout, rows: Sequence[int], settings: Settings
) -> tuple[Tensor, Tensor]:
    """The weights of each row, zero in a row that sees no key; and every statistic."""
    prefix = layout.prefix
    distances = layout.distances(rows, logits.size(-1), logits.device)
    unknown = torch.full_like(logits[..., 0], torch.nan)
    prefix_mass = logits.softmax(-1)[..., :prefix].sum(-1) if prefix else unknown
    first = prefix if settings.keys == "patches" else 0
    share = logits[..., first:].softmax(-1).nan_to_num_(0)
    ordered = rising(share)
    n_keys = share.size(-1) - count_below(ordered, _least(ordered[..., -1]))
    values = measure_seen(share, ordered, n_keys, threshold=settings.threshold, mass=settings.mass)
    values |= {"distance": unknown, "prefix_mass": prefix_mass}
    if distances is not None:
        steps = distances[:, first:].to(share.dtype)
        near = (share * steps.nan_to_num(0)).sum(-1)
        values["distance"] = near / (share * ~steps.isnan()).sum(-1)
    # One tensor, so that there is one to move: what all heads share is repeated for each.
    values["head_similarity"] = values["head_similarity"].unsqueeze(-2).expand_as(unknown)
    return share, torch.stack([values[name] for name in STATISTICS])


def _there(share: Tensor) -> Tensor:
    """Whether a key is there: not hidden by a mask, nor in a row that sees none."""
    return share >= _least(share.amax(-1, keepdim=True))


def _least(peak: Tensor) -> Tensor:
    """What a key that is there has at least; above zero, where a row sees none."""
    return (_HIDDEN * peak).clamp_min(torch.finfo(peak.dtype).tiny)


def _array(tensor: Tensor) -> Array:
    return np.asarray(tensor.to("cpu", torch.float64))
