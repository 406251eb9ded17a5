"""Which instruments work on which models of timm, torchvision and transformers?

    python benchmarks/bench_coverage.py [--only timm] [--models "vit*"] [--output docs/coverage.md]

Every instrument runs on one small model of every module of timm, of every family of torchvision and
of some seventy architectures of transformers, with random weights and the ecosystem's own batches.
A model runs in a process of its own, so that a crash stops nothing. What is finished is kept in
`--results`, from which a second call goes on. About forty minutes on one core.
"""

import argparse
import fnmatch
import json
import multiprocessing
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import timm
import torch
import transformers

from coverage_instruments import Case, examine
from coverage_page import Row, write_page
from coverage_transformers import ARCHITECTURES
from coverage_vision import (
    TORCHVISION_CLASSIFIERS,
    TORCHVISION_SEGMENTATION,
    TORCHVISION_VIDEO,
    TooLargeError,
    smallest_of_module,
    timm_case,
    torchvision_case,
)

# Low priority: a run takes the better part of an hour.
_NICENESS = 15

LIBRARIES: dict[str, tuple[str, ...]] = {
    "timm": tuple(timm.list_modules()),
    "torchvision": TORCHVISION_CLASSIFIERS + TORCHVISION_SEGMENTATION + TORCHVISION_VIDEO,
    "transformers": tuple(ARCHITECTURES),
}


def main(argv: list[str] | None = None) -> None:
    """Examine the models asked for, and write the page of all that are known."""
    args = _parse_args(argv)
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()

    rows = _read_rows(args.results)
    for library in [args.only] if args.only else LIBRARIES:
        for name in fnmatch.filter(LIBRARIES[library], args.models):
            key = f"{library} {name}"
            if key in rows and not args.again:
                continue

            rows[key] = _examine_apart(library, name, args.seconds)
            print(f"{key}: {rows[key].summary()}", flush=True)
            _write_rows(args.results, rows)

    order = [f"{library} {name}" for library, names in LIBRARIES.items() for name in names]
    known_rows = [rows[key] for key in order if key in rows]
    args.output.write_text(write_page(known_rows))


def _parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=list(LIBRARIES), help="one library")
    parser.add_argument("--models", default="*", help="pattern of modules, models, architectures")
    parser.add_argument("--seconds", type=float, default=120, help="most for one model")
    parser.add_argument("--output", type=Path, default=Path("docs/coverage.md"), help="the page")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("build/coverage.json"),
        help="what is finished, to go on from",
    )
    parser.add_argument("--again", action="store_true", help="also what is finished")
    return parser.parse_args(argv)


def _examine_apart(library: str, name: str, seconds: float) -> Row:
    """Examine one model in a process of its own, for so long at most."""
    # Forked: the libraries, which take longer to import than most models to run, are there.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(library, name, sender))
    worker.start()
    sender.close()

    try:
        if not receiver.poll(seconds):
            return Row(library, name, skipped=f"more than {seconds:.0f} seconds")
        return Row.from_dict(receiver.recv())
    except EOFError:
        worker.join()
        return Row(library, name, skipped=f"the process ended with code {worker.exitcode}")
    finally:
        worker.kill()
        worker.join()


def _work(library: str, name: str, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    model_name = smallest_of_module(name) if library == "timm" else name
    try:
        case = _BUILDERS[library](model_name)
    except TooLargeError as error:
        row = Row(library, name, model_name, skipped=str(error))
    else:
        row = Row(library, name, type_name(case, model_name), examine(case))
    sender.send(asdict(row))


def type_name(case: Case, model_name: str) -> str:
    """Name the model of a row: the class of an architecture, else what the library calls it."""
    return type(case.model).__name__ if model_name in ARCHITECTURES else model_name


_BUILDERS: dict[str, Callable[[str], Case]] = {
    "timm": timm_case,
    "torchvision": torchvision_case,
    "transformers": lambda name: ARCHITECTURES[name].build(),
}


def _read_rows(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    entries: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return {key: Row.from_dict(entry) for key, entry in entries.items()}


def _write_rows(path: Path, rows: dict[str, Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {key: asdict(row) for key, row in rows.items()}

    # Renamed when it is whole, so that a kill leaves the one before.
    unfinished_path = path.with_suffix(".part")
    unfinished_path.write_text(json.dumps(entries, indent=1))
    unfinished_path.replace(path)


if __name__ == "__main__":
    main()
