"""Scripts run in processes of their own, and which options made the results that are there.

Beside `<script>.nc` lies `<script>.options`, the options that made it. It is deleted before a
script starts and written after it has succeeded, so that where it is, the result is whole.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.results.record import read_record

PASSED_ON = ("data", "seeds", "processes", "dask")
NOT_TAKEN = {"early_exit": ("data", "processes", "dask")}  # it reads text, in this process


def options_of(name: str, args: argparse.Namespace) -> list[str]:
    """Say what the script is called with, besides its places."""
    options = ["--scale", args.scale]
    for option in PASSED_ON:
        value = getattr(args, option)
        if value is not None and option not in NOT_TAKEN.get(name, ()):
            options += [f"--{option}", str(value)]
    return options


def has_result(output: Path, options: Sequence[str]) -> bool:
    """Tell whether these very options made the result, and its table can be read."""
    options_file = _options_file(output)
    if not options_file.is_file() or options_file.read_bytes() != " ".join(options).encode():
        return False

    try:
        return output.is_file() and read_record(output.with_suffix(".json")) is not None
    except ValueError:
        return False


def run_script(path: Path, output: Path, options: Sequence[str], *, cache: Path) -> bool:
    """Run one script, what it prints in a log, and tell whether it succeeded."""
    _options_file(output).unlink(missing_ok=True)

    command = [sys.executable, str(path), "--output", str(output), *options, "--cache", str(cache)]
    environment = os.environ | {"MPLBACKEND": "agg"}  # no window
    with output.with_suffix(".log").open("w", encoding="utf-8") as log:
        process = subprocess.run(command, stdout=log, stderr=log, env=environment)

    has_succeeded = process.returncode == 0
    if has_succeeded:
        _options_file(output).write_text(" ".join(options), encoding="utf-8")
    return has_succeeded


def _options_file(output: Path) -> Path:
    return output.with_suffix(".options")
