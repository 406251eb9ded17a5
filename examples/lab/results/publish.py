"""What the scripts share at both ends: their options, and results written and compared.

A verdict is given only where the budget allows one: at `--scale paper`, or for quantities that no
training budget changes (parameter counts, dilution factors). There a row agrees if the measured
value is within the tolerance that its note states or, where it states none, has the published sign.
Everything else is "not comparable", with a note whether the sign is the same.
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import xarray as xr
from matplotlib.figure import Figure

from lab.results import netcdf

SCALES = ("smoke", "cpu", "paper")
VERDICTS = ("agrees", "disagrees", "not comparable")
Value = float | str | None


@dataclass(frozen=True)
class Row:
    """One published quantity beside ours; None where there is nothing to put."""

    quantity: str
    published: Value
    here: Value
    verdict: str = "not comparable"
    note: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"`verdict`: expected one of {VERDICTS}, got {self.verdict!r}")


def compare(
    quantity: str,
    published: float,
    here: float,
    *,
    scale: str,
    tolerance: float | None = None,
    origin: str = "",
    budget_free: bool = False,
    signed: bool = True,
    note: str = "",
) -> Row:
    """A row with its verdict, by the rule at the top of this file.

    Args:
        quantity: What was measured.
        published: The paper's number.
        here: Ours; NaN (a diverged run, say) is never comparable.
        scale: One of `SCALES`.
        tolerance: Largest difference that agrees; None compares signs.
        origin: Where the tolerance comes from, in words.
        budget_free: Whether no training budget changes the quantity.
        signed: Whether the sign means anything; if not, a tolerance is needed for a verdict.
        note: Further words.

    Examples:
        >>> compare("gain", 9.2, 3.0, scale="paper").verdict
        'agrees'
        >>> compare("gain", 9.2, -3.0, scale="smoke").note
        'other sign'
        >>> compare("gain", 9.2, 8.9, scale="paper", tolerance=0.5, origin="as published").note
        'tolerance +- 0.5, as published'
    """
    same_sign = math.copysign(1, published) == math.copysign(1, here)
    comparable = (scale == "paper" or budget_free) and (signed or tolerance is not None)
    if not comparable or not math.isfinite(here):
        sign = ("same sign" if same_sign else "other sign") if signed and here else ""
        sign = sign if math.isfinite(here) else "undefined here"
        return Row(quantity, published, here, note="; ".join(filter(None, [sign, note])))
    agrees = same_sign if tolerance is None else abs(published - here) <= tolerance
    bound = "" if tolerance is None else ", ".join(filter(None, [f"+- {tolerance:g}", origin]))
    note = "; ".join(filter(None, [bound and f"tolerance {bound}", note]))
    return Row(quantity, published, here, "agrees" if agrees else "disagrees", note)


def arguments(doc: str | None, *, output: str) -> argparse.ArgumentParser:
    """The options of every script; it may add its own.

    Args:
        doc: The script's docstring.
        output: Where its Dataset goes by default.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--scale", choices=SCALES, default="smoke", help="seconds, minutes, or the paper's recipe"
    )
    parser.add_argument(
        "--data",
        help="digits, cifar10, cifar100, fashion-mnist, an .npz, or a folder of class folders; "
        "digits at --scale smoke, else the paper's, by default",
    )
    parser.add_argument("--output", type=Path, default=Path(output), help="the .nc to write")
    parser.add_argument("--seeds", type=at_least_one, help="how many seeds, from 42 on")
    parser.add_argument("--cache", type=Path, default=Path("results/cache"), help="finished runs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--processes", type=at_least_one, help="run on so many processes")
    where.add_argument("--dask", metavar="ADDRESS", help="run on this Dask scheduler")
    return parser


def at_least_one(text: str) -> int:
    """For argparse: a whole number above zero."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def publish(
    result: xr.Dataset,
    figure: Figure | Mapping[str, Figure],
    rows: Sequence[Row],
    *,
    output: Path,
    budget: str,
) -> None:
    """Write Dataset (.nc), figure (.png, .pdf) and rows (.json), and print the rows.

    All files are complete before the first appears under its name: if writing fails (a full disk),
    what was there before is still there. The .nc comes last. Of the processes that
    `accelerate launch` starts, only the first writes and prints.

    Args:
        result: What was measured.
        figure: The figure, or several by name: "" is the first, others are put between stem and
            suffix (`table5.layers.png`).
        rows: Published quantities beside ours.
        output: The .nc path; the other files lie beside it.
        budget: What was spent, in words.
    """
    if os.environ.get("RANK", "0") != "0":
        return
    figures = dict(figure) if isinstance(figure, Mapping) else {"": figure}
    writers: dict[Path, Callable[[Path], object]] = {}
    for name, drawn in figures.items():
        for kind in ("png", "pdf"):
            writers[output.with_suffix(f".{name}.{kind}".replace("..", "."))] = _saver(drawn, kind)
    pictures = [path.name for path in writers if path.suffix == ".png"]
    record = {"budget": budget, "figures": pictures, "rows": [_finite(row) for row in rows]}
    text = json.dumps(record, indent=1, allow_nan=False)
    writers[output.with_suffix(".json")] = lambda path: path.write_text(text)
    writers[output] = netcdf.writer(result.assign_attrs(budget=budget))
    write_atomically(writers)
    print_table(rows, budget)
    print(f"wrote {output}, and {', '.join(pictures)} beside it")


def write_atomically(writers: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write all files or none: each to a temporary neighbour first, then all are renamed."""
    with ExitStack() as stack:
        temporary = {path: stack.enter_context(_neighbour(path)) for path in writers}
        for path, write in writers.items():
            write(temporary[path])
        for path, finished in temporary.items():
            os.replace(finished, path)


def print_table(rows: Sequence[Row], budget: str) -> None:
    """Print quantities, published and measured, with the budget and the verdict."""
    lines = [("", "published", "here", "budget", "verdict")]
    for row in rows:
        verdict = f"{row.verdict} ({row.note})" if row.note else row.verdict
        lines.append((row.quantity, shown(row.published), shown(row.here), budget, verdict))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(" | ".join(cells).rstrip())


def shown(value: Value) -> str:
    """A value as the tables print it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return value if isinstance(value, str) else f"{value + 0.0:.4g}"  # no minus before a zero


@contextmanager
def _neighbour(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid4().hex}")  # unique on a shared disk, too
    try:
        yield beside
    finally:
        beside.unlink(missing_ok=True)


def _saver(figure: Figure, kind: str) -> Callable[[Path], object]:
    # Without a date the same figure gives the same file.
    undated = {"CreationDate": None} if kind == "pdf" else None
    return lambda path: figure.savefig(path, format=kind, dpi=120, metadata=undated)


def _finite(row: Row) -> dict[str, Value]:
    values = asdict(row)
    bad = [k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)]
    return values | dict.fromkeys(bad)
