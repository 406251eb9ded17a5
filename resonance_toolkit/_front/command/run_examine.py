"""`resonance examine`: from a name and a file to a page."""

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import resonance_toolkit
from resonance_toolkit import all_accelerators, check_writable, write_atomically
from resonance_toolkit._front.command.check_fit import check_fit, find_loss
from resonance_toolkit._front.command.digits_vit import make_digits_vit
from resonance_toolkit._front.command.libraries import LoadedModel
from resonance_toolkit._front.command.load_data import FORMS, find_source
from resonance_toolkit._front.command.load_model import load_model
from resonance_toolkit._front.command.mistake import Mistake, first_line
from resonance_toolkit._front.command.settings import ModelRequest, Preparation

# Arguments of `resonance.examine` that are options of the same name; None leaves it its default.
_SETTINGS = ("layers", "n", "alpha", "steps", "seeds", "parts", "seed")

# Samples that are looked at beforehand. Of files a few, since each is read.
_LOOKED_AT = 500
_FILES_LOOKED_AT = 8


@dataclass(frozen=True)
class Subject:
    """What is examined."""

    model: nn.Module
    data: Any
    lines: tuple[str, ...]  # what was understood, for people
    held_out: Any = None


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
    subject = _load_subject(arguments)
    n_looked_at = _LOOKED_AT if isinstance(subject.data, tuple | dict) else _FILES_LOOKED_AT
    loss = check_fit(subject.model, subject.data, loss, samples=n_looked_at)
    _print_to_stderr(subject.lines)

    if progress.exists():
        _print_to_stderr([f"going on from {progress}"])

    settings = _read_settings(arguments) | {"loss": loss, "held_out": subject.held_out}
    tree = _examine_or_explain(subject, progress, settings)
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
            f"--output: {reason}; give another folder, or --fresh to begin anew"
        ) from error


def _load_subject(arguments: argparse.Namespace) -> Subject:
    model_text, data_text = _choose_model_and_data(arguments)
    device = _find_device(arguments.device)

    if model_text == "digits" and data_text == "digits":
        if arguments.checkpoint is not None or arguments.classes not in (None, 10):
            raise Mistake("MODEL: digits is as it is; --checkpoint and --classes are for others")
        _print_to_stderr(
            ["training a small vision transformer on some of the digits, for some seconds"]
        )
        digits_vit, data = make_digits_vit(arguments.seed)
        lines = (
            "model: DigitsViT, four blocks, trained briefly on 597 digits",
            f"data: the other {len(data[0])} digits",
        )
        return Subject(digits_vit.to(device), data, lines)
    if model_text == "digits":
        raise Mistake("MODEL: digits is a model for --data digits alone")

    source = find_source(data_text, window=arguments.window)
    options = Preparation(arguments.image_size, arguments.mean, arguments.std)
    request = ModelRequest(
        model_text,
        seed=arguments.seed,
        n_classes=arguments.classes or source.n_classes,
        channels=source.channels,
        image_size=options.image_size or source.image_size,
        is_pretrained=arguments.pretrained,
        is_about_text=source.is_text,
        checkpoint=arguments.checkpoint,
    )
    loaded = load_model(request)
    prepared = source.prepare(loaded, options)

    lines = (_describe_model(loaded, model_text), f"data: {prepared.words}")
    return Subject(loaded.module.to(device), prepared.data, lines, prepared.held_out)


def _choose_model_and_data(arguments: argparse.Namespace) -> tuple[str, str]:
    if arguments.model is None and arguments.data is None:
        raise Mistake(
            "MODEL: say what to examine; the first thing to try is: python -m resonance examine "
            "digits"
        )
    if arguments.data is None and arguments.model != "digits":
        if difflib.get_close_matches(arguments.model, ["digits"]):
            raise Mistake(f"MODEL: expected digits, or a model with --data; got {arguments.model}")
        raise Mistake(f"--data: say what {arguments.model} is examined on: {FORMS}")
    if arguments.model is None and arguments.data != "digits":
        raise Mistake(f"MODEL: say which model is examined on {arguments.data}")
    return arguments.model or "digits", arguments.data or "digits"


def _find_device(name: str | None) -> torch.device:
    if name is None:
        return next(iter(all_accelerators()), torch.device("cpu"))
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except Exception as error:  # every back end has its own
        available = ", ".join(["cpu", *map(str, all_accelerators())])
        raise Mistake(
            f"--device: torch cannot use {name!r} on this machine; it has {available}"
        ) from error
    if device.type == "meta":
        raise Mistake("--device: expected one that computes, got meta")
    return device


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


def _choose_title(arguments: argparse.Namespace) -> str:
    model, data = _choose_model_and_data(arguments)
    return "A small vision transformer on digits" if model == "digits" else f"{model} on {data}"


def _read_budget(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _describe_model(loaded: LoadedModel, text: str) -> str:
    n_parameters = sum(parameter.numel() for parameter in loaded.module.parameters())
    kind = type(loaded.module).__name__
    return f"model: {text}, a {kind} of {n_parameters:,} parameters, {loaded.weights}"


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
        _print_to_stderr(
            ["stopped by Ctrl-C; what is finished is saved, and the same command goes on"]
        )
        return 130
    progress.unlink(missing_ok=True)
    return 0 if "done" in statuses.values() else 1


def _print_to_stderr(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
