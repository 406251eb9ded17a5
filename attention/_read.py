"""Numbers from attention calls: the rows asked for, and nothing else.

A few rows (the class token's, or some indices) are kept as logits while the model runs, and
finished afterwards, all layers of one form in one go. All rows are finished at once, some queries
at a time, so that no whole map is ever made.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attention._call import Call, Comparison
from attention._layout import Layout
from attention._measure import MEASURES, Label, count_below, measure_sorted, sort_rows
from attention._settings import Settings

Array = NDArray[np.float64]

STATISTICS = MEASURES | {
    "distance": Label("mean attention distance", "token"),
    "prefix_mass": Label("attention on class and register tokens"),
}

# A weight this far below the largest of its row, exp(-80), is a masked one: Swin's mask adds -100.
_HIDDEN_SHARE = 1.8e-35


@dataclass
class Reading:
    """What one attention call gave: axes `(sample, head, row)` and, of maps, `key` after them.

    `real_queries` tells padding, `(sample, query)`: its statistics are NaN, or not in their mean.
    `logits` of few rows wait until all layers are known, so that equal ones are finished in one
    go; `values` and `weights` are the finished form. `values` has an axis of `STATISTICS` first.
    """

    kind: str
    layout: Layout
    n_samples: int
    shape: tuple[int, int, int, int]  # (group, head, query, key)
    real_queries: Tensor | None = None
    logits: Tensor | None = None
    rows: list[int] = field(default_factory=list)
    values: Array = field(init=False)
    weights: Array = field(init=False)

    @property
    def n_windows(self) -> int:
        """Groups in a sample."""
        return self.shape[0] // self.n_samples


def read(call: Call, reading: Reading, settings: Settings, *, check: bool) -> Comparison | None:
    """Compute the rows asked for, and nothing else, of one attention call.

    Returns:
        One row beside what the layer used, if that can be checked.
    """
    read_rows = _read_all if settings.queries in ("all", "mean") else _read_few
    row, logits = read_rows(call, reading, settings)

    if not check or call.compare is None:
        return None
    return call.compare(logits.softmax(-1), slice(row, row + 1))


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
            share, statistics = _weights_and_statistics(
                logits, alike[0].layout, alike[0].rows, settings
            )

        # One transfer from the device for all of them.
        values = _to_numpy(statistics)
        maps = _to_numpy(_nan_where_hidden(share)) if settings.maps else None
        for index, reading in enumerate(alike):
            reading.logits = None
            reading.values = _without_padding(values[:, index], reading)
            if maps is not None:
                reading.weights = maps[index]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Keep autocast from our own arithmetic."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def _read_few(call: Call, reading: Reading, settings: Settings) -> tuple[int, Tensor]:
    """Keep the logits of the class token, or of the rows asked for; NaN where there is none.

    Returns:
        A row, and its logits in the first group, to be checked.
    """
    n_queries = call.shape[2]
    n_rows = reading.n_windows * n_queries

    # A layer without a class token has no such row: one beyond its last stands for it.
    if isinstance(settings.queries, list):
        asked_rows = settings.queries
    else:
        asked_rows = [0 if reading.layout.prefix else n_rows]
    are_rows = [-n_rows <= row < n_rows for row in asked_rows]
    rows = [row % n_rows if is_row else 0 for row, is_row in zip(asked_rows, are_rows, strict=True)]

    queries = [row % n_queries for row in rows]
    device = call.device  # whatever the default one is
    if len(queries) == 1:
        logits = call.logits(slice(queries[0], queries[0] + 1))
    else:
        logits = call.logits(torch.tensor(queries, device=device))
    first_logits = logits[:1, :, :1]

    # Of each row, the window that it is in: (sample, window, head, row, key) loses one axis.
    if reading.n_windows > 1:
        logits = logits.unflatten(0, (reading.n_samples, reading.n_windows))
        windows = torch.tensor([row // n_queries for row in rows], device=device)
        positions = torch.arange(len(rows), device=device)
        logits = logits[:, windows, :, positions].movedim(0, 2)
    if not all(are_rows):
        is_absent = torch.tensor([not is_row for is_row in are_rows], device=device)
        logits = logits.masked_fill(is_absent[:, None], torch.nan)

    if settings.queries == "cls" and reading.layout.prefix:
        _check_class_token_is_real(reading.real_queries)

    # A copy: the model may write to what it computed, and its map should go when it is done.
    reading.logits = logits.clone()
    reading.rows = queries
    return queries[0], first_logits


def _read_all(call: Call, reading: Reading, settings: Settings) -> tuple[int, Tensor]:
    """Take the statistics of all rows, some queries at a time, so that no whole map is needed.

    Returns:
        A row, and its logits in the first group, to be checked.
    """
    n_queries = call.shape[2]
    statistics: list[Tensor] = []
    maps: list[Tensor] = []
    weight_sum: Tensor | float = 0.0
    n_visible: Tensor | float = 0.0

    for start in range(0, n_queries, settings.chunk):
        stop = min(start + settings.chunk, n_queries)
        logits = call.logits(slice(start, stop))
        logits = logits.unflatten(0, (reading.n_samples, reading.n_windows))
        share, values = _weights_and_statistics(
            logits, reading.layout, range(start, stop), settings
        )

        # (sample, window, head, query): there is one window where positions are known.
        is_real = None
        if reading.real_queries is not None:
            is_real = reading.real_queries[:, None, None, start:stop]
            values = values.masked_fill(~is_real, torch.nan)
        statistics.append(values)

        # Whole maps go to the CPU, where there is room; of a mean map the sum will do.
        if settings.maps and settings.queries == "all":
            maps.append(_nan_where_hidden(share).cpu())
        elif settings.maps:
            share = share if is_real is None else share * is_real[..., None]
            weight_sum = weight_sum + share.sum((1, 3))
            n_visible = n_visible + _is_visible(share).sum((1, 3))

    # One by one: together they may be larger than anything the model makes.
    by_statistic = zip(*statistics, strict=True)  # (sample, window, head, query) each
    rows = [torch.cat(chunks, -1).movedim(1, -2).flatten(-2) for chunks in by_statistic]
    if settings.queries == "mean":
        rows = [row.nanmean(-1, keepdim=True) for row in rows]
    reading.values = np.stack([_to_numpy(row) for row in rows])

    if maps:
        reading.weights = _to_numpy(torch.cat(maps, -2).movedim(1, 2).flatten(2, 3))
    elif settings.maps and isinstance(n_visible, Tensor):
        n_rows: Tensor | int = reading.n_windows * n_queries
        if reading.real_queries is not None:
            n_rows = reading.real_queries.sum(1)[:, None, None]
        mean_row = weight_sum / (n_visible if settings.among_seeing_queries else n_rows)

        # The last key of a causal model is seen by one query: no mean says anything of it.
        fewest = n_rows / 2 if settings.among_seeing_queries else 0
        is_known = (n_visible > 0) & (n_visible >= fewest)
        reading.weights = _to_numpy(torch.where(is_known, mean_row, torch.nan)[:, :, None])
    return n_queries - 1, logits[0, :1, :, -1:]


def _check_class_token_is_real(real_queries: Tensor | None) -> None:
    if real_queries is not None and not bool(real_queries[:, 0].all()):
        raise ValueError(
            "`data`: expected the class token first, but the mask says that the first position of "
            'a sample is padding; pad at the end, or give queries="mean"'
        )


def _without_padding(values: Array, reading: Reading) -> Array:
    """Put NaN for the statistics `(statistic, sample, head, row)` of rows that are padding."""
    if reading.real_queries is None:
        return values
    is_real = reading.real_queries[:, reading.rows].cpu().numpy()
    return np.where(is_real[:, None], values, np.nan)


def _weights_and_statistics(
    logits: Tensor, layout: Layout, rows: Sequence[int], settings: Settings
) -> tuple[Tensor, Tensor]:
    """Return the weights of each row, zero in a row that sees no key; and every statistic."""
    prefix = layout.prefix
    undefined = torch.full_like(logits[..., 0], torch.nan)
    prefix_mass = logits.softmax(-1)[..., :prefix].sum(-1) if prefix else undefined

    # Without the prefix, the rest of the row adds up to one.
    first_key = prefix if settings.keys == "patches" else 0
    share = logits[..., first_key:].softmax(-1).nan_to_num_(0)
    ordered = sort_rows(share)
    n_keys = share.size(-1) - count_below(ordered, _smallest_visible(ordered[..., -1]))
    values = measure_sorted(
        share, ordered, n_keys, threshold=settings.threshold, mass=settings.mass
    )
    values |= {"distance": undefined, "prefix_mass": prefix_mass}

    distances = layout.distances(rows, logits.size(-1), logits.device)
    if distances is not None:
        steps = distances[:, first_key:].to(share.dtype)
        weighted_steps = (share * steps.nan_to_num(0)).sum(-1)
        values["distance"] = weighted_steps / (share * ~steps.isnan()).sum(-1)

    # One tensor, so that there is one to move: what all heads share is repeated for each.
    values["head_similarity"] = values["head_similarity"].unsqueeze(-2).expand_as(undefined)
    return share, torch.stack([values[name] for name in STATISTICS])


def _nan_where_hidden(share: Tensor) -> Tensor:
    return torch.where(_is_visible(share), share, torch.nan)


def _is_visible(share: Tensor) -> Tensor:
    """Tell whether a key is there: not hidden by a mask, nor in a row that sees none."""
    return share >= _smallest_visible(share.amax(-1, keepdim=True))


def _smallest_visible(peak: Tensor) -> Tensor:
    """Return what a key that is there has at least; above zero, where a row sees none."""
    return (_HIDDEN_SHARE * peak).clamp_min(torch.finfo(peak.dtype).tiny)


def _to_numpy(tensor: Tensor) -> Array:
    return np.asarray(tensor.to("cpu", torch.float64))
