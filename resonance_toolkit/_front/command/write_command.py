"""The words by which a run of the command line can be repeated."""

import argparse
import shlex
from typing import Any

from resonance_toolkit._front.command.parser import parse_arguments

# What decides where results go, and what is told: not what is measured.
_BESIDE = {"command", "output", "fresh", "debug", "model", "threads", "device"}


def write_command(arguments: argparse.Namespace) -> str:
    """Write a command such that it examines the same again; what is a default is left out.

    Examples:
        >>> arguments = argparse.Namespace(model="timm:resnet18", data="my images", seed=1, n=None)
        >>> write_command(arguments)
        "examine timm:resnet18 --data 'my images' --seed 1"
    """
    defaults = vars(parse_arguments(["examine"]))
    words = ["examine"]
    if arguments.model is not None:
        words.append(arguments.model)

    for name, value in vars(arguments).items():
        if name in _BESIDE or value == defaults.get(name):
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(_write_value(value))

    return shlex.join(words)


def _write_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
