"""How far long work has come: a bar in terminals and notebooks, a line now and then in log files.

`track` goes through items, `reporting` counts what a loop of another form has done, and
`showing_progress` (or the environment variable `RESONANCE_PROGRESS`) decides what is shown. Short
work shows nothing. In a log file:

    0 s      10 s                40 s                     70 s    ...  5 min    ...  done
    (quiet)  first line          a line                   a line       every         last line,
                                                                       quarter of    if there was
                                                                       the time so   a first
                                                                       far

Nothing here touches results: whatever cannot be written is left out.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar, get_args

from tqdm import tqdm

from resonance_toolkit._base.checks import check_choice
from resonance_toolkit._base.processes import is_first_process

Item = TypeVar("Item")
ProgressForm = Literal["auto", "bar", "lines", "off"]

# Seconds. A bar that is gone at once would only flicker; a log file is read after the fact.
_BAR_AFTER = 0.5
_FIRST_LINE_AFTER = 10.0
_LINES_APART = 30.0

# Of the time so far: an hour's work fills no screen.
_LINES_APART_SHARE = 0.25

_chosen_form: ContextVar[ProgressForm | None] = ContextVar("chosen_form", default=None)


class Progress(Protocol):
    """Counts what is done."""

    def update(self, n: int = 1) -> object:
        """Say that `n` more are done."""

    def set_description(self, label: str) -> object:
        """Say what is being done now, where that changes on the way."""


@contextmanager
def showing_progress(form: ProgressForm) -> Iterator[None]:
    """Choose how verbs show their progress while the body runs.

    For a whole program, set the environment variable `RESONANCE_PROGRESS` to one of the same words.
    `TQDM_DISABLE` is respected, too; this guard overrides both.

    Args:
        form: `"off"` for nothing; `"bar"`; `"lines"`, for log files; or `"auto"`, a bar in a
            terminal or notebook and lines elsewhere.

    Examples:
        >>> with showing_progress("off"):
        ...     sum(track([1, 2], "adding"))
        3
    """
    check_choice("form", form, get_args(ProgressForm))

    token = _chosen_form.set(form)
    try:
        yield
    finally:
        _chosen_form.reset(token)


def track(
    items: Iterable[Item], label: str, *, unit: str = "item", total: int | None = None
) -> Iterator[Item]:
    """Go through items, and show how many have been dealt with.

    Args:
        items: What to go through.
        label: What is being done, in a word or two.
        unit: What one item is called.
        total: How many there are; by default their length, if they have one.

    Examples:
        >>> list(track("abc", "spelling"))
        ['a', 'b', 'c']
    """
    if total is None and isinstance(items, Sized):
        total = len(items)

    with reporting(label, unit=unit, total=total) as progress:
        for item in items:
            yield item
            progress.update()


@contextmanager
def reporting(
    label: str,
    *,
    unit: str = "item",
    total: int | None = None,
    found: int = 0,
    source: str = "",
    may_end_early: bool = False,
) -> Iterator[Progress]:
    """Give a counter, whose `update(n)` says that `n` more are done, and show what it counts.

    Args:
        label: What is being done, in a word or two.
        unit: What one of them is called.
        total: How many there will be, if that is known.
        found: How many were done before, in another run.
        source: Where those were found; said at once.
        may_end_early: Whether `total` is only an upper bound.

    Examples:
        >>> with reporting("adding", total=2) as progress:
        ...     progress.update()
        ...     progress.update()
    """
    form = _find_form()
    if form == "off":
        yield _Silence()
        return

    if source:
        _write_line(f"{label}: {found}{_of_total(total)} {_plural(unit, total)} found in {source}")

    if form == "bar":
        with _make_bar(
            desc=f"{label} (at most)" if may_end_early else label,
            unit=unit,
            total=total,
            initial=found,
            leave=False,
            delay=_BAR_AFTER,
        ) as bar:
            yield bar
        return

    lines = _Lines(label, unit, total, found, may_end_early)
    try:
        yield lines
    except BaseException:
        lines.end(is_complete=False)
        raise
    lines.end(is_complete=True)


class _Silence:
    def update(self, n: int = 1) -> None:
        pass

    def set_description(self, label: str) -> None:
        pass


class _Lines:
    """A line now and then, in the way of a log."""

    def __init__(
        self, label: str, unit: str, total: int | None, n_found: int, may_end_early: bool
    ) -> None:
        self.label = label
        self.unit = unit
        self.total = total
        self.n_found = n_found
        self.may_end_early = may_end_early

        self.count = n_found
        self.began_at = _now()
        self.next_line_after = _FIRST_LINE_AFTER
        self.has_written = False

    def update(self, n: int = 1) -> None:
        self.count += n
        elapsed = _now() - self.began_at
        if elapsed < self.next_line_after:
            return

        # The last of all is told by `end`.
        if self.count != self.total:
            self._write_progress(elapsed)
        self.next_line_after = elapsed + max(_LINES_APART, _LINES_APART_SHARE * elapsed)

    def set_description(self, label: str) -> None:
        self.label = label

    def end(self, *, is_complete: bool) -> None:
        elapsed = _now() - self.began_at
        if elapsed < _FIRST_LINE_AFTER and not self.has_written:
            return

        if is_complete:
            amount = f"done, {self.count} {_plural(self.unit, self.count)}"
        else:
            units = _plural(self.unit, self.total)
            amount = f"stopped after {self.count}{_of_total(self.total)} {units}"
        _write_line(f"{self.label}: {amount} in {_write_duration(elapsed)}")

    def _write_progress(self, elapsed: float) -> None:
        of_total = _of_total(self.total, at_most=self.may_end_early)
        parts = [f"{self.count}{of_total} {_plural(self.unit, self.total)}"]

        # What was found had been done before, and says nothing about the speed of this run.
        rate = (self.count - self.n_found) / elapsed
        parts.append(_write_speed(rate, self.unit))
        if self.total is not None and rate > 0:
            remaining = _write_duration(max(self.total - self.count, 0) / rate)
            parts.append(f"{'at most ' if self.may_end_early else ''}{remaining} left")

        _write_line(f"{self.label}: {', '.join(parts)}")
        self.has_written = True


def _find_form() -> Literal["bar", "lines", "off"]:
    form = _chosen_form.get()
    if form is None:
        form = _form_of_environment()

    # One process tells for all. Nobody reads a program that has no stderr (`pythonw`).
    if form == "off" or not is_first_process() or _stream() is None:
        return "off"
    if form == "auto":
        return "bar" if _is_terminal() or _is_notebook() else "lines"
    return form


def _form_of_environment() -> ProgressForm:
    form = os.environ.get("RESONANCE_PROGRESS", "auto").strip().lower() or "auto"
    if form in {"0", "no", "false", "none"}:
        form = "off"

    # Another word is no reason to stop a run of hours.
    if form not in get_args(ProgressForm):
        form = "auto"

    is_disabled = os.environ.get("TQDM_DISABLE", "").strip().lower() not in {"", "0", "false"}
    if form == "auto" and is_disabled:
        return "off"
    return form  # type: ignore[return-value]  # one of the words, as was just checked


def _is_terminal() -> bool:
    try:
        return bool(_stream().isatty())
    except (AttributeError, ValueError):  # not a whole file, or closed
        return False


def _is_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()

    # IPython in a terminal has a shell without a kernel.
    return getattr(shell, "kernel", None) is not None


def _make_bar(**settings: Any) -> Any:
    # Not `tqdm.auto`, which warns where widgets are not installed: then a bar of letters.
    if _is_notebook() and importlib.util.find_spec("ipywidgets") is not None:
        with suppress(ImportError):
            from tqdm.notebook import tqdm as widget_bar

            return widget_bar(**settings)
    return tqdm(file=_stream(), **settings)


def _write_line(line: str) -> None:
    # A full disk or a closed pipe is no reason to lose the work.
    with suppress(OSError, ValueError):
        stream = _stream()
        tqdm.write(line, file=stream)
        stream.flush()


def _now() -> float:
    return time.monotonic()


def _stream() -> Any:
    return sys.stderr


def _of_total(total: int | None, *, at_most: bool = False) -> str:
    if total is None:
        return ""
    return f" of at most {total}" if at_most else f" of {total}"


def _plural(unit: str, n: int | None) -> str:
    if n == 1 or unit == "percent":
        return unit
    return f"{unit}es" if unit.endswith(("ch", "s", "x")) else f"{unit}s"


def _write_speed(rate: float, unit: str) -> str:
    if 0 < rate < 1:
        return f"{1 / rate:.3g} s per {unit}"
    return f"{rate:.3g} {_plural(unit, 2)} per second"


def _write_duration(seconds: float) -> str:
    n_seconds = round(seconds)
    if n_seconds < 60:
        return f"{n_seconds} s"
    if n_seconds < 3600:
        return f"{n_seconds // 60} min {n_seconds % 60:02d} s"
    return f"{n_seconds // 3600} h {n_seconds % 3600 // 60:02d} min"
