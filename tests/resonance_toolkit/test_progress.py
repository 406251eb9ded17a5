import io
import sys
import types
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import landscape
from resonance_toolkit import reporting, showing_progress, spread, track
from resonance_toolkit._base import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Time passes only when a test says so."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "_now", clock)
    return clock


@pytest.fixture
def log(monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.delenv("RESONANCE_PROGRESS", raising=False)
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_stream", lambda: stream)
    return stream


def work(clock, items, seconds_each, **settings):
    """When each line was written, and what it said."""
    lines = {}
    with reporting("training", unit="batch", total=items, **settings) as counter:
        for _ in range(items - settings.get("found", 0)):
            clock.seconds += seconds_each
            counter.update()
            for line in progress._stream().getvalue().splitlines():
                lines.setdefault(line, clock.seconds - 1000)
    for line in progress._stream().getvalue().splitlines():
        lines.setdefault(line, clock.seconds - 1000)
    return lines


def test_short_work_says_nothing(log, clock):
    assert work(clock, 9, 1.0) == {}


def test_lines_come_after_10_seconds_then_30_apart_then_last(log, clock):
    assert work(clock, 100, 1.0) == {
        "training: 10 of 100 batches, 1 batches per second, 1 min 30 s left": 10.0,
        "training: 40 of 100 batches, 1 batches per second, 1 min 00 s left": 40.0,
        "training: 70 of 100 batches, 1 batches per second, 30 s left": 70.0,
        "training: done, 100 batches in 1 min 40 s": 100.0,
    }


def test_lines_grow_rare(log, clock):
    times = list(work(clock, 10 * 3600, 1.0).values())
    assert len(times) < 40

    # After two minutes, each waits for a quarter of the time so far.
    late = [(a, b) for a, b in pairwise(times[:-1]) if a > 120]
    assert all(1.25 * a <= b <= 1.25 * a + 1 for a, b in late)


def test_slow_work_is_told_in_seconds_per_item(log, clock):
    lines = list(work(clock, 4, 90.0))
    assert lines[0] == "training: 1 of 4 batches, 90 s per batch, 4 min 30 s left"


def test_speed_is_of_this_run_alone(log, clock):
    lines = list(work(clock, 100, 1.0, found=60, source="plane.nc"))
    assert lines[:2] == [
        "training: 60 of 100 batches found in plane.nc",
        "training: 70 of 100 batches, 1 batches per second, 30 s left",
    ]
    assert lines[-1] == "training: done, 100 batches in 40 s"


def test_an_upper_bound_is_called_one(log, clock):
    (first, *_) = work(clock, 40, 1.0, may_end_early=True)
    assert first == "training: 10 of at most 40 batches, 1 batches per second, at most 30 s left"


def test_unknown_totals(log, clock):
    with reporting("curvature", unit="product") as counter:
        clock.seconds += 20
        counter.update()
    assert log.getvalue().splitlines() == [
        "curvature: 1 products, 20 s per product",
        "curvature: done, 1 product in 20 s",
    ]


def test_failed_work_says_how_far_it_came(log, clock):
    def fail():
        with reporting("grid", unit="point", total=9) as counter:
            clock.seconds += 12
            counter.update(4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert log.getvalue().splitlines()[-1] == "grid: stopped after 4 of 9 points in 12 s"


def test_a_terminal_has_a_bar_that_goes(monkeypatch, log):
    terminal = Terminal()
    monkeypatch.setattr(progress, "_stream", lambda: terminal)
    monkeypatch.setattr(progress, "_BAR_AFTER", 0)
    assert list(track(range(3), "counting", unit="step")) == [0, 1, 2]
    assert "counting:   0%|" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")


def test_short_work_in_a_terminal_shows_nothing(monkeypatch, log):
    terminal = Terminal()
    monkeypatch.setattr(progress, "_stream", lambda: terminal)
    list(track(range(3), "counting"))
    assert terminal.getvalue().strip() == ""


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_without_widgets_has_a_bar_of_letters(monkeypatch, log, has_widgets):
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setattr(progress, "_BAR_AFTER", 0)

    # Even where the package is there, tqdm may not find what it needs in it.
    def find_spec(name):
        return object() if has_widgets else None

    monkeypatch.setattr(progress.importlib.util, "find_spec", find_spec)
    broken = types.ModuleType("tqdm.notebook")
    monkeypatch.setitem(sys.modules, "tqdm.notebook", broken)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(track(range(3), "counting"))
    assert "counting:   0%|" in log.getvalue()


def test_a_notebook_with_widgets_has_theirs(monkeypatch, log):
    shell = types.SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: object())
    notebook = types.ModuleType("tqdm.notebook")
    made = []

    def bar(**settings):
        made.append(settings)
        return progress.tqdm(file=io.StringIO(), **settings)

    notebook.tqdm = bar
    monkeypatch.setitem(sys.modules, "tqdm.notebook", notebook)
    list(track(range(3), "counting"))
    assert [settings["total"] for settings in made] == [3]
    assert log.getvalue() == ""


@pytest.mark.parametrize(
    "environment",
    [{"TQDM_DISABLE": "1"}, {"RESONANCE_PROGRESS": "off"}, {"RESONANCE_PROGRESS": "0"}],
)
def test_the_environment_silences(monkeypatch, log, clock, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert work(clock, 100, 1.0, found=1, source="file.nc") == {}

    terminal = Terminal()
    monkeypatch.setattr(progress, "_stream", lambda: terminal)
    monkeypatch.setattr(progress, "_BAR_AFTER", 0)
    list(track(range(3), "counting"))
    assert terminal.getvalue() == ""


def test_a_guard_counts_more_than_the_environment(monkeypatch, log, clock):
    monkeypatch.setenv("RESONANCE_PROGRESS", "off")
    with showing_progress("lines"):
        with showing_progress("off"):
            assert work(clock, 100, 1.0) == {}
        assert work(clock, 100, 1.0)
    log.truncate(0)
    assert work(clock, 100, 1.0) == {}

    guard = showing_progress("no")
    with pytest.raises(ValueError, match=r"`form`: expected one of .*off.* got 'no'"), guard:
        pass


def test_an_unknown_word_in_the_environment_stops_nothing(monkeypatch, log, clock):
    monkeypatch.setenv("RESONANCE_PROGRESS", "loud")
    assert len(work(clock, 100, 1.0)) == 4


def test_one_process_speaks_for_all(monkeypatch, log, clock):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert work(clock, 100, 1.0) == {}


def test_a_stream_that_cannot_be_written_harms_nothing(monkeypatch, log, clock):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    for stream in (Broken(), None):
        monkeypatch.setattr(progress, "_stream", lambda stream=stream: stream)
        numbers = []
        for number in track(range(3), "counting"):
            clock.seconds += 20
            numbers.append(number)
        assert numbers == [0, 1, 2]

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(progress, "_stream", lambda: closed)
    assert list(track(range(3), "counting")) == [0, 1, 2]


def test_spread_counts_its_items(log, clock):
    def slowly(item):
        clock.seconds += 6
        return item

    assert list(spread(slowly, [1, 2, 3], label="waiting", unit="training")) == [
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert log.getvalue().splitlines() == [
        "waiting: 2 of 3 trainings, 6 s per training, 6 s left",
        "waiting: done, 3 trainings in 18 s",
    ]


def test_a_resumed_grid_says_what_it_found(log, clock, tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = torch.randn(8, 3), torch.arange(8) % 2
    path = tmp_path / "plane.nc"
    calls = 0

    def metric(_):
        nonlocal calls
        calls += 1
        clock.seconds += 1
        if calls == 14:
            raise KeyboardInterrupt
        return 0.0

    def measure(checkpoint):
        return landscape.grid(model, data, size=5, metrics={"m": metric}, checkpoint=checkpoint)

    with pytest.raises(KeyboardInterrupt):
        measure(path)
    with xr.open_dataset(path, engine="h5netcdf") as points:
        n_done = int(points["done"].sum())
    assert 0 < n_done < 25
    log.truncate(0)
    log.seek(0)

    resumed = measure(path)
    first, *rest = log.getvalue().splitlines()
    assert first == f"landscape: {n_done} of 25 points found in plane.nc"
    assert all(line.startswith("landscape: ") for line in rest)

    with showing_progress("off"):
        np.testing.assert_array_equal(resumed["loss"], measure(None)["loss"])


def test_an_adaptive_grid_is_one_piece_of_work(log, clock):
    """Its rounds are short; together they are long."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = torch.randn(8, 3), torch.arange(8) % 2

    def metric(_):
        clock.seconds += 0.5
        return 0.0

    surface = landscape.grid(model, data, size=21, metrics={"m": metric}, method="adaptive")
    first, *_, last = log.getvalue().splitlines()
    assert "of at most 441 points" in first
    assert f"done, {int(surface['evaluated'].sum())} points" in last
