"""`resonance examine`: from a name and a file to a page."""

import argparse
import dataclasses
import inspect
from pathlib import Path
from typing import Any

import torch

import resonance_toolkit
from resonance_toolkit import check_writable, write_atomically
from resonance_toolkit._front.command.check_fit import check_fit, find_loss
from resonance_toolkit._front.command.inputs.load_subject import (
    Subject,
    choose_model_and_data,
    load_subject,
    print_to_stderr,
)
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.write_command import write_command
from resonance_toolkit._front.examine.examine import examine
from resonance_toolkit._front.examine.settings import Settings, settle_parts

# Arguments of `resonance.examine` that are options of the same name; None leaves it its default.
_SETTINGS = ("layers", "n", "alpha", "steps", "seeds", "parts", "seed")

# Samples that are looked at beforehand. Of files a few, since each is read.
_LOOKED_AT = 500
_FILES_LOOKED_AT = 8


def run_examine(arguments: argparse.Namespace) -> int:
    """Load, measure, write the result and its page, and say where they are."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    folder: Path = arguments.output
    _check_folder(folder)
    progress = folder / "progress.nc"
    if arguments.fresh:
        progress.unlink(missing_ok=True)

    loss = None if arguments.loss is None else find_loss(arguments.loss)
    settings = _read_settings(arguments)
    _check_settings(settings)

    subject = load_subject(arguments)
    n_looked_at = _LOOKED_AT if isinstance(subject.data, tuple | dict) else _FILES_LOOKED_AT
    loss = check_fit(subject.model, subject.data, loss, samples=n_looked_at)
    print_to_stderr(subject.lines)

    if progress.exists():
        print_to_stderr([f"going on from {progress}"])

    settings |= {"loss": loss, "held_out": subject.held_out}
    tree = _examine_or_explain(subject, progress, settings)
    tree.attrs["command"] = write_command(arguments)
    return _write_results(tree, folder, progress)


def _examine_or_explain(subject: Subject, progress: Path, settings: dict[str, Any]) -> Any:
    chosen_settings = {name: value for name, value in settings.items() if value is not None}
    try:
        return resonance_toolkit.examine(
            subject.model, subject.data, checkpoint=progress, **chosen_settings
        )
    except ValueError as error:
        if not str(error).startswith("`checkpoint`"):
            raise
        # What Python calls the checkpoint is no option here.
        reason = first_line(error).partition(": ")[2].partition(". Delete it")[0]
        raise Mistake(
            f"--output: {reason}; give another folder, or --fresh to start over"
        ) from error


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise Mistake(f"--output: cannot make the folder {folder}: there is a file of that name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Mistake(f"--output: cannot make the folder {folder}: {error.strerror}") from error
    check_writable("output", folder / "report.html")


def _read_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {name: getattr(arguments, name) for name in _SETTINGS}
    settings["title"] = arguments.title or _choose_title(arguments)
    if arguments.budget is not None:
        settings["budget"] = _read_budget(arguments.budget)
    return settings


def _check_settings(settings: dict[str, Any]) -> None:
    """Refuse what cannot be meant before anything is loaded, which may take a while."""
    defaults = inspect.signature(examine).parameters
    names = [field.name for field in dataclasses.fields(Settings)]
    values = {name: defaults[name].default for name in names}
    values |= {name: value for name, value in settings.items() if value is not None}
    Settings(**values | {"parts": settle_parts(values["parts"])}).check()


def _choose_title(arguments: argparse.Namespace) -> str:
    model, data = choose_model_and_data(arguments)
    return "A small vision transformer on digits" if model == "digits" else f"{model} on {data}"


def _read_budget(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _write_results(tree: Any, folder: Path, progress: Path) -> int:
    result = folder / "result.nc"
    report = folder / "report.html"
    write_atomically({result: lambda path: tree.to_netcdf(path, engine="h5netcdf")})

    statuses = dict(zip(tree["part"].values.tolist(), tree["status"].values.tolist(), strict=True))
    for part, status in statuses.items():
        if status != "done":
            reason = str(tree["reason"].sel(part=part).item())
            print(f"{part}: {status}{': ' if reason else ''}{reason}")
    print(tree.attrs["verdict_sentence"])
    print(f"result: {result}", flush=True)

    # Last, so that minutes of work are on the disk and told, whatever happens here.
    resonance_toolkit.page(tree, report)
    print(f"page: {report}")

    if "interrupted" in statuses.values():
        print_to_stderr(
            ["stopped by Ctrl-C; finished parts are saved, and the same command continues"]
        )
        return 130
    progress.unlink(missing_ok=True)
    return 0 if "done" in statuses.values() else 1
