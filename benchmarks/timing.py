"""Time several ways of doing a thing in turn, so that noise meets them alike; report ratios.

Import this first: a benchmark is called like the package it measures, and this module moves the
benchmarks' folder out of the way of the packages (and puts `examples`, for its laboratory, there).
"""

import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "examples")

import numpy as np  # noqa: E402  (the path comes first)
import torch  # noqa: E402

Ways = Mapping[str, Callable[[], object]]
Times = dict[str, np.ndarray]


def interleaved(ways: Ways, *, rounds: int, warmup: int = 2) -> Times:
    """CPU seconds of this process for each way, `(round,)`; the order turns with every round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(warmup + rounds):
        for name in names if turn % 2 else reversed(names):
            start = time.process_time()
            ways[name]()
            if turn >= warmup:
                times[name].append(time.process_time() - start)
    return {name: np.array(values) for name, values in times.items()}


def cpu_time(work: Callable[[], object]) -> float:
    """CPU seconds of this process for doing it once."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(times: Times, way: str, to: str) -> str:
    """`way` in units of `to`: the median over rounds of their ratios, and the quartiles."""
    low, middle, high = np.percentile(times[way] / times[to], [25, 50, 75])
    return f"{middle:6.2f} x  [{low:.2f}, {high:.2f}]"


def row(times: Times, way: str, to: str, *, bar: float | None = None) -> str:
    """A line of a table: what was done, its `ratio`, the most it should be, and whether it is."""
    line = f"  {way:<38} {ratio(times, way, to):<26}"
    if bar is None:
        return line
    met = np.median(times[way] / times[to]) <= bar
    return f"{line} <= {bar:.2f}  {'met' if met else 'MISSED'}"


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that torch had allocated on the CPU during `work`, beyond what was there before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = work()
    del kept
    records = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(records, key=lambda e: e.start_ns())]
    return int(np.cumsum(changes).max(initial=0))


def machine(rounds: int) -> str:
    """One line that says where the numbers come from."""
    threads = torch.get_num_threads()
    return f"torch {torch.__version__}, {platform.machine()}, threads: {threads}, rounds: {rounds}"
