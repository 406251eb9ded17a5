"""One readable error where a pass of the user's code has failed."""

import os
import traceback
from pathlib import Path

import torch

import resonance_toolkit

# Frames of these packages are ours or torch's, not the user's.
_OTHERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(__file__).parents[1],
        Path(resonance_toolkit.__file__).parent,
        Path(torch.__file__).parent,
    )
)


def failed_pass(first: Exception | None, *, guessed: bool) -> ValueError:
    """Say that a forward pass failed, why, and where; to be raised `from None`.

    The traceback of a dry run is long, and most of it is torch's and ours. The error itself stays
    within reach, as `__context__`.
    """
    hint = "; give an input batch as `sample`" if guessed else ""
    refusal = ValueError(
        f"`model`: a forward pass failed{hint} ({describe_error(first)}){failing_line(first)}"
    )
    refusal.__context__ = first
    return refusal


def describe_error(error: Exception | None) -> str:
    """What kind of error it was, and its words."""
    return f"{type(error).__name__}: {error}"


def failing_line(error: Exception | None) -> str:
    """The innermost line of the user's own code, else of a library's that is not torch."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    others = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    own = [frame for frame in others if "site-packages" not in frame.filename]
    return "\n" + "".join(traceback.format_list((own or others)[-1:])).rstrip() if others else ""
