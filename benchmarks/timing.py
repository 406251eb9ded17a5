"""Time several ways of doing the same work, in turn, and report their ratios.

Ratios of one run are comparable between machines; seconds are not. Taking turns lets a change of
the processor's speed, or another program, meet all ways alike. The benchmarks beside this file are
run as scripts (`python benchmarks/bench_probes.py`), so that they find it in their own folder.
"""

import argparse
import platform
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

Ways = Mapping[str, Callable[[], object]]
Times = dict[str, np.ndarray]


def command_line(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options that every benchmark has; `description` is the docstring of its file."""
    summary = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each way")
    parser.add_argument(
        "--quick", action="store_true", help="one round of the smallest case: does it still run?"
    )
    return parser


def parse_args(
    parser: argparse.ArgumentParser, argv: list[str] | None = None
) -> argparse.Namespace:
    """Read the options, take one thread, fix the seed, and print where the numbers come from."""
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds = 1

    # With one thread, CPU time is the time that a reader would wait on an idle machine.
    torch.set_num_threads(1)
    torch.manual_seed(0)

    print(f"torch {torch.__version__}, {platform.machine()}, one thread, rounds: {args.rounds}")
    return args


def interleaved(ways: Ways, *, rounds: int, warmup: int = 2) -> Times:
    """CPU seconds of this process for each way, `(round,)`; every other round goes backwards."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}

    for turn in range(warmup + rounds):
        order = names if turn % 2 else reversed(names)

        for name in order:
            duration = cpu_time(ways[name])
            if turn >= warmup:
                seconds[name].append(duration)

    return {name: np.array(values) for name, values in seconds.items()}


def cpu_time(work: Callable[[], object]) -> float:
    """CPU seconds of this process for doing the work once."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(times: Times, way: str, baseline: str) -> str:
    """`way` in units of `baseline`: the median over rounds of their ratios, and the quartiles."""
    low, median, high = np.percentile(times[way] / times[baseline], [25, 50, 75])
    return f"{median:6.2f} x  [{low:.2f}, {high:.2f}]"


def row(times: Times, way: str, baseline: str, *, bar: float | None = None) -> str:
    """A line of a table: what was done, its `ratio`, the most it should be, and whether it is."""
    line = f"  {way:<38} {ratio(times, way, baseline):<26}"
    if bar is None:
        return line

    is_met = np.median(times[way] / times[baseline]) <= bar
    return f"{line} <= {bar:.2f}  {'met' if is_met else 'MISSED'}"


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that torch had allocated on the CPU during `work`, beyond what was there before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = work()

    # The result is freed after profiling: it counts, as it would for a caller.
    del result

    events = profile.profiler.kineto_results.events()
    memory_events = [event for event in events if event.name() == "[memory]"]
    memory_events.sort(key=lambda event: event.start_ns())

    changes = [event.nbytes() for event in memory_events]
    return int(np.cumsum(changes).max(initial=0))
