"""What a corpus is worth: vocabulary, distinct contexts, periodicity, overlap; and a warning."""

import platform
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from lab.data.text import PARTS, WINDOW, Corpus

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
LONGEST_LAG = 4096

# A corpus is degenerate beyond these. English text: matches 0.07 to 0.12, new 16-grams above 0.7.
MAX_LAG_MATCH = 0.5
MIN_NEW_CONTEXTS = 0.2
MAX_WINDOW_OVERLAP = 0.5
MAX_UNKNOWN = 0.01

Ids = NDArray[np.int64]

_BY_PART = {
    "characters": "characters",
    "unknown": "characters left out, which training never shows",
    "vocabulary": "distinct characters",
    "windows": f"windows of {WINDOW}",
    "period": "exact period in characters",
    "lag": "first shift of a good match with itself",
    "lag_match": "share of characters equal at that shift",
    "window_overlap": "share of windows found in training",
}
_BY_LENGTH = {
    "contexts": "distinct n-grams",
    "overlap": "share of n-grams found in training",
}


def report(corpus: Corpus) -> xr.Dataset:
    """Describe each part of a corpus, and warn if it is degenerate.

    Returns:
        Dataset over `part` (and n-gram `length`) with `characters`, `unknown` (left out),
        `vocabulary` (distinct characters), `windows`, `period` (the smallest exact one that fits in
        twice; NaN if none), `lag` and `lag_match` (the smallest shift that does nearly as well as
        any, and the share of characters it leaves equal), `contexts` (distinct n-grams), `overlap`
        (share of a part's n-grams that training has too) and `window_overlap` (the same for whole
        windows).

    Warns:
        UserWarning: If a part is periodic, nearly periodic, has few distinct contexts or many
            unknown characters, or most of the validation windows occur in training.
    """
    training_grams = _find_grams(corpus.train.numpy(), len(corpus.vocabulary))
    known_grams = [np.unique(grams) for grams in training_grams]
    parts = [_describe_part(corpus, part, known_grams) for part in PARTS]

    variables: dict[str, Any] = {}
    for name, text in _BY_PART.items():
        values = np.array([part[name] for part in parts], float)
        variables[name] = ("part", values, {"long_name": text})
    for name, text in _BY_LENGTH.items():
        values = np.array([part[name] for part in parts], float)
        variables[name] = (("part", "length"), values, {"long_name": text})

    result = xr.Dataset(
        variables,
        coords={
            "part": ("part", list(PARTS), {"long_name": "part of the text, by position"}),
            "length": ("length", list(LENGTHS), {"long_name": "characters of an n-gram"}),
        },
        attrs={"corpus": corpus.name, "python_version": platform.python_version()},
    )

    if reasons := degenerate(result):
        warnings.warn(f"degenerate corpus ({corpus.name}): {'; '.join(reasons)}", stacklevel=2)
    return result


def degenerate(report: xr.Dataset) -> list[str]:
    """Say why a reported corpus can show nothing about language; an empty list if it may."""
    reasons = []
    for part in PARTS:
        row = report.sel(part=part)

        if np.isfinite(row["period"]):
            reasons.append(f"{part} repeats itself every {row['period']:.0f} characters")
        elif row["lag_match"] > MAX_LAG_MATCH:
            words = f"{row['lag_match']:.0%} of {part} repeats itself after {row['lag']:.0f}"
            reasons.append(f"{words} characters")

        n_contexts = row["characters"] - 15  # windows of 16 characters
        new = float(row["contexts"].sel(length=16) / n_contexts)
        if new < MIN_NEW_CONTEXTS:
            reasons.append(f"only {new:.1%} of the 16-character contexts of {part} are distinct")

        unknown = float(row["unknown"] / (row["characters"] + row["unknown"]))
        if unknown > MAX_UNKNOWN:
            reasons.append(f"{unknown:.0%} of {part} has characters that training lacks")

    overlap = float(report["window_overlap"].sel(part="validation"))
    if overlap > MAX_WINDOW_OVERLAP:
        reasons.append(f"{overlap:.0%} of the validation windows occur in training")
    return reasons


def show(report: xr.Dataset) -> str:
    """Write the report as a table."""
    cells = {text: report[name].values for name, text in _BY_PART.items()}
    for length in (16, 64):
        for name, text in _BY_LENGTH.items():
            cells[f"{text}, n = {length}"] = report[name].sel(length=length).values

    lines = [f"corpus: {report.attrs['corpus']}, Python {report.attrs['python_version']}"]
    lines.append(f"{'':50}" + "".join(f"{part:>13}" for part in PARTS))
    for label, values in cells.items():
        lines.append(f"{label:50}" + "".join(f"{value:13.6g}" for value in values))
    return "\n".join(lines)


def _describe_part(
    corpus: Corpus, part: str, known_grams: Sequence[NDArray[np.void]]
) -> dict[str, Any]:
    """Return every variable of the report for one part; `known_grams` are those of training."""
    ids: Ids = getattr(corpus, part).numpy()
    grams_by_length = _find_grams(ids, len(corpus.vocabulary))
    # Of the n-grams as long as a window, every 64th is one.
    whole_windows = grams_by_length[LENGTHS.index(WINDOW)][::WINDOW]
    lag, lag_match = _find_lag(ids)

    return {
        "characters": len(ids),
        "unknown": corpus.unknown[PARTS.index(part)],
        "vocabulary": len(np.unique(ids)),
        "windows": (len(ids) - 1) // WINDOW,
        "period": _find_period(ids),
        "lag": lag,
        "lag_match": lag_match,
        "window_overlap": np.isin(whole_windows, known_grams[LENGTHS.index(WINDOW)]).mean(),
        "contexts": [len(np.unique(grams)) for grams in grams_by_length],
        "overlap": [
            np.isin(grams, training_grams).mean()
            for grams, training_grams in zip(grams_by_length, known_grams, strict=True)
        ],
    }


def _find_grams(ids: Ids, vocabulary_size: int) -> list[NDArray[np.void]]:
    """Return, for each of `LENGTHS`, every n-gram as one opaque item, which numpy can sort."""
    small_ids = ids.astype(np.min_scalar_type(vocabulary_size))

    grams = []
    for n in LENGTHS:
        rows = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(small_ids, n))
        grams.append(rows.view(np.dtype((np.void, small_ids.itemsize * n)))[:, 0])
    return grams


def _find_period(ids: Ids) -> float:
    """Return the smallest exact period that fits in at least twice, else NaN.

    By the failure function of Knuth, Morris and Pratt: `border[i]` is the length of the longest
    proper prefix of `symbols[: i + 1]` that is also its suffix.
    """
    # A list: single elements of an array are slow to reach.
    symbols = ids.tolist()
    border = [0] * len(symbols)
    length = 0

    for i in range(1, len(symbols)):
        while length and symbols[i] != symbols[length]:
            length = border[length - 1]
        if symbols[i] == symbols[length]:
            length += 1
        border[i] = length

    period = len(symbols) - border[-1]
    return float(period) if 2 * period <= len(symbols) else float("nan")


def _find_lag(ids: Ids) -> tuple[float, float]:
    """Return the first shift that leaves nearly as many characters equal as any, and the share."""
    symbols = ids.astype(np.int32)
    lags = range(1, min(len(ids) // 2, LONGEST_LAG) + 1)
    matches = [
        np.count_nonzero(symbols[lag:] == symbols[:-lag]) / (len(symbols) - lag) for lag in lags
    ]

    # Multiples of a noisy period match about as well: the first that does is the period.
    enough = 0.9 * max(matches)
    first = next(index for index, share in enumerate(matches) if share >= enough)
    return float(lags[first]), matches[first]
