"""The words by which a run of the command line can be repeated."""

import argparse
import shlex
from typing import Any

# What decides where results go, and what is told: not what is measured.
_BESIDE = {"run", "output", "fresh", "debug", "model", "threads", "device"}


def write_command(arguments: argparse.Namespace) -> str:
    """Write a command such that it examines the same again.

    Examples:
        >>> arguments = argparse.Namespace(model="timm:resnet18", data="my images", seed=0, n=None)
        >>> write_command(arguments)
        "examine timm:resnet18 --data 'my images' --seed 0"
    """
    words = ["examine"]
    if arguments.model is not None:
        words.append(arguments.model)

    for name, value in vars(arguments).items():
        if name in _BESIDE or value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(_write_value(value))

    return shlex.join(words)


def _write_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
