"""One readable error where a pass of the user's code has failed."""

import os
import traceback
from pathlib import Path

import torch

import resonance_toolkit
from resonance_toolkit import FailedPassError

# Frames of these packages are ours or torch's, not the user's. Ours is found as the folder of the
# whole package `probes`, two levels up.
_LIBRARY_FOLDERS = tuple(
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

    Args:
        first: The error of the first input that was tried.
        guessed: Whether that input was a guess of ours, so that a `sample` may help.
    """
    # The model's own error, not what `call_model` makes of it.
    if isinstance(first, FailedPassError) and isinstance(first.__cause__, Exception):
        first = first.__cause__

    hint = "; give an input batch as `sample`" if guessed else ""

    refusal = ValueError(
        f"`model`: a forward pass failed{hint} ({describe_error(first)}){failing_line(first)}"
    )
    refusal.__context__ = first
    return refusal


def describe_error(error: Exception | None) -> str:
    """Say what kind of error it was, and its words."""
    return f"{type(error).__name__}: {error}"


def failing_line(error: Exception | None) -> str:
    """Quote the innermost line of the user's own code, else of a library that is not torch.

    Returns:
        A line break and the quotation, to be put behind a message; empty if there is none.
    """
    if error is None:
        return ""

    frames = traceback.extract_tb(error.__traceback__)
    foreign_frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARY_FOLDERS)]
    if not foreign_frames:
        return ""

    user_frames = [frame for frame in foreign_frames if "site-packages" not in frame.filename]
    innermost_frame = (user_frames or foreign_frames)[-1]
    return "\n" + "".join(traceback.format_list([innermost_frame])).rstrip()
