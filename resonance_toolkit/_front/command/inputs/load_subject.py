"""From the words of a command to the model and the data that it examines."""

import argparse
import difflib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from resonance_toolkit import all_accelerators
from resonance_toolkit._front.command.inputs.digits_vit import make_digits_vit
from resonance_toolkit._front.command.inputs.libraries import LoadedModel
from resonance_toolkit._front.command.inputs.load_data import FORMS, find_source
from resonance_toolkit._front.command.inputs.load_model import load_model
from resonance_toolkit._front.command.mistake import Mistake
from resonance_toolkit._front.command.settings import ModelRequest, Preparation


@dataclass(frozen=True)
class Subject:
    """What is examined."""

    model: nn.Module
    data: Any
    lines: tuple[str, ...]  # what was understood, for people
    held_out: Any = None


def load_subject(arguments: argparse.Namespace) -> Subject:
    """Load the model and the data that a command names.

    Raises:
        Mistake: If there is no such model, or no such data.
    """
    model_text, data_text = choose_model_and_data(arguments)
    device = _find_device(arguments.device)

    if model_text == "digits" and data_text == "digits":
        if arguments.checkpoint is not None or arguments.classes not in (None, 10):
            raise Mistake("MODEL: digits takes neither --checkpoint nor --classes")
        print_to_stderr(
            ["training a small vision transformer on some of the digits, for some seconds"]
        )
        digits_vit, data = make_digits_vit(arguments.seed)
        lines = (
            "model: DigitsViT, four blocks, trained briefly on 597 digits",
            f"data: the other {len(data[0])} digits",
        )
        return Subject(digits_vit.to(device), data, lines)
    if model_text == "digits":
        raise Mistake("MODEL: the model digits needs --data digits")
    if ".py:" in model_text:
        _check_own_file(arguments)

    source = find_source(data_text, window=arguments.window)
    asked = Preparation(arguments.image_size, arguments.mean, arguments.std)
    request = ModelRequest(
        model_text,
        seed=arguments.seed,
        n_classes=arguments.classes or source.n_classes,
        channels=source.channels,
        image_size=asked.image_size or source.image_size,
        is_pretrained=arguments.pretrained,
        is_about_text=source.is_text,
        checkpoint=arguments.checkpoint,
    )
    loaded = load_model(request)
    prepared = source.prepare(loaded, asked)

    lines = (_describe_model(loaded, model_text), f"data: {prepared.words}")
    return Subject(loaded.module.to(device), prepared.data, lines, prepared.held_out)


def choose_model_and_data(arguments: argparse.Namespace) -> tuple[str, str]:
    """Return what MODEL and DATA are, one of which may follow from the other."""
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


def _check_own_file(arguments: argparse.Namespace) -> None:
    """Refuse options that the code of a file would not see."""
    options = {"--classes": arguments.classes is not None, "--pretrained": arguments.pretrained}
    for option, is_set in options.items():
        if is_set:
            raise Mistake(
                f"{option}: the code of {arguments.model} alone decides it; leave out {option}, or "
                "write a function that makes such a model"
            )


def _describe_model(loaded: LoadedModel, text: str) -> str:
    n_parameters = sum(parameter.numel() for parameter in loaded.module.parameters())
    kind = type(loaded.module).__name__
    return f"model: {text}, a {kind} of {n_parameters:,} parameters, {loaded.weights}"


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


def print_to_stderr(lines: Iterable[str]) -> None:
    """Tell people, beside what the command gives."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)
