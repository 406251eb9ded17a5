"""Scripts run in processes of their own, and which options made the results that are there."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.results.record import read_record

PASSED_ON = ("data", "seeds", "processes", "dask")
LACKS = {"early_exit": ("data", "processes", "dask")}  # it reads text


def options_of(name: str, args: argparse.Namespace) -> list[str]:
    """What the script is called with, besides its places."""
    options = ["--scale", args.scale]
    for option in PASSED_ON:
        value = getattr(args, option)
        if value is not None and option not in LACKS.get(name, ()):
            options += [f"--{option}", str(value)]
    return options


def is_there(output: Path, options: Sequence[str]) -> bool:
    """Whether these very options made the result, and its table can be read."""
    stamp = _stamp(output)
    if not stamp.is_file() or stamp.read_bytes() != " ".join(options).encode():
        return False
    try:
        return output.is_file() and read_record(output.with_suffix(".json")) is not None
    except ValueError:
        return False


def run(path: Path, output: Path, options: Sequence[str], *, cache: Path) -> bool:
    """Run one script, its words in a log; whether it succeeded.

    The options are written last: what lies beside them was made with them.
    """
    _stamp(output).unlink(missing_ok=True)
    command = [sys.executable, str(path), "--output", str(output), *options, "--cache", str(cache)]
    with output.with_suffix(".log").open("w") as log:
        settings = {"stdout": log, "stderr": log, "env": os.environ | {"MPLBACKEND": "agg"}}
        good = subprocess.run(command, **settings).returncode == 0
    if good:
        _stamp(output).write_text(" ".join(options))
    return good


def _stamp(output: Path) -> Path:
    return output.with_suffix(".options")
