"""What a corpus is worth: vocabulary, distinct contexts, periodicity, overlap; and a warning."""

import platform
import warnings

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from lab.data.text import PARTS, WINDOW, Corpus

LENGTHS = (1, 2, 4, 8, 16, 32, 64)
LONGEST_LAG = 4096
# A corpus is degenerate beyond these. English text: matches 0.07 to 0.12, new 16-grams above 0.7.
MOST_MATCHES, LEAST_NEW, MOST_SEEN, MOST_UNKNOWN = 0.5, 0.2, 0.5, 0.01


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
    ids = {part: getattr(corpus, part).numpy() for part in PARTS}
    grams = {
        part: [_grams(ids[part], n, len(corpus.vocabulary)) for n in LENGTHS] for part in PARTS
    }
    unique = {part: [np.unique(g) for g in grams[part]] for part in PARTS}
    shares = {
        part: [np.isin(g, u).mean() for g, u in zip(grams[part], unique["train"], strict=True)]
        for part in PARTS
    }
    lags = {part: _lag(ids[part]) for part in PARTS}
    whole = {part: grams[part][LENGTHS.index(WINDOW)][::WINDOW] for part in PARTS}
    by_part = {
        "characters": ([len(ids[p]) for p in PARTS], "characters"),
        "unknown": (corpus.unknown, "characters left out, which training never shows"),
        "vocabulary": ([len(np.unique(ids[p])) for p in PARTS], "distinct characters"),
        "windows": ([(len(ids[p]) - 1) // WINDOW for p in PARTS], f"windows of {WINDOW}"),
        "period": ([_period(ids[p]) for p in PARTS], "exact period in characters"),
        "lag": ([lags[p][0] for p in PARTS], "first shift of a good match with itself"),
        "lag_match": ([lags[p][1] for p in PARTS], "share of characters equal at that shift"),
        "window_overlap": (
            [np.isin(whole[p], unique["train"][-1]).mean() for p in PARTS],
            "share of windows found in training",
        ),
    }
    two = ("part", "length")
    counts = [[len(u) for u in unique[p]] for p in PARTS]
    result = xr.Dataset(
        {
            name: ("part", np.array(v, float), {"long_name": text})
            for name, (v, text) in by_part.items()
        }
        | {
            "contexts": (two, np.array(counts, float), {"long_name": "distinct n-grams"}),
            "overlap": (
                two,
                np.array([shares[p] for p in PARTS]),
                {"long_name": "share of n-grams found in training"},
            ),
        },
        coords={
            "part": ("part", list(PARTS), {"long_name": "part of the text, by position"}),
            "length": ("length", list(LENGTHS), {"long_name": "characters of an n-gram"}),
        },
        attrs={"corpus": corpus.name, "python_version": platform.python_version()},
    )
    if reasons := degenerate(result):
        warnings.warn(f"degenerate corpus ({corpus.name}): {'; '.join(reasons)}", stacklevel=2)
    return result


def degenerate(found: xr.Dataset) -> list[str]:
    """Why a reported corpus can show nothing about language, in words; empty if it may."""
    reasons = []
    for part in PARTS:
        row = found.sel(part=part)
        if np.isfinite(row["period"]):
            reasons.append(f"{part} repeats itself every {row['period']:.0f} characters")
        elif row["lag_match"] > MOST_MATCHES:
            words = f"{row['lag_match']:.0%} of {part} repeats itself after {row['lag']:.0f}"
            reasons.append(f"{words} characters")
        new = float(row["contexts"].sel(length=16) / (row["characters"] - 15))
        if new < LEAST_NEW:
            reasons.append(f"only {new:.1%} of the 16-character contexts of {part} are distinct")
        unknown = float(row["unknown"] / (row["characters"] + row["unknown"]))
        if unknown > MOST_UNKNOWN:
            reasons.append(f"{unknown:.0%} of {part} has characters that training lacks")
    seen = float(found["window_overlap"].sel(part="validation"))
    if seen > MOST_SEEN:
        reasons.append(f"{seen:.0%} of the validation windows occur in training")
    return reasons


def show(found: xr.Dataset) -> str:
    """The report as a table."""
    lines = [f"corpus: {found.attrs['corpus']}, Python {found.attrs['python_version']}"]
    lines.append(f"{'':50}" + "".join(f"{part:>13}" for part in PARTS))
    cells = {
        str(found[n].attrs["long_name"]): found[n].values
        for n in found
        if "length" not in found[n].dims
    }
    for n in (16, 64):
        for name in ("contexts", "overlap"):
            label = f"{found[name].attrs['long_name']}, n = {n}"
            cells[label] = found[name].sel(length=n).values
    lines += [f"{label:50}" + "".join(f"{v:13.6g}" for v in row) for label, row in cells.items()]
    return "\n".join(lines)


def _grams(ids: NDArray[np.int64], n: int, most: int) -> NDArray[np.void]:
    """Every n-gram as one opaque item."""
    small = ids.astype(np.min_scalar_type(most))
    rows = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(small, n))
    return rows.view(np.dtype((np.void, small.itemsize * n)))[:, 0]


def _period(ids: NDArray[np.int64]) -> float:
    """The smallest exact period (Knuth, Morris, Pratt) that fits in at least twice, else NaN."""
    symbols = ids.tolist()
    border, length = [0] * len(symbols), 0
    for i in range(1, len(symbols)):
        while length and symbols[i] != symbols[length]:
            length = border[length - 1]
        length += symbols[i] == symbols[length]
        border[i] = length
    period = len(symbols) - border[-1]
    return float(period) if 2 * period <= len(symbols) else float("nan")


def _lag(ids: NDArray[np.int64]) -> tuple[float, float]:
    small = ids.astype(np.int32)
    lags = range(1, min(len(ids) // 2, LONGEST_LAG) + 1)
    matches = [np.count_nonzero(small[k:] == small[:-k]) / (len(small) - k) for k in lags]
    # Multiples of a noisy period match about as well: the first that does is the period.
    first = next(i for i, share in enumerate(matches) if share >= 0.9 * max(matches))
    return float(lags[first]), matches[first]
