import contextlib
import io
import shlex
from typing import Any

from torch import nn

from resonance_toolkit._front.command.inputs.load_subject import load_subject
from resonance_toolkit._front.command.mistake import Mistake
from resonance_toolkit._front.command.parser import parse_arguments


def from_command(command: str) -> tuple[nn.Module, Any, Any]:
    """Return the model and the data that a command line examines.

    By these, what a page of `python -m resonance examine` shows is repeated or gone on with in
    Python: the page begins its calls with this one.

    Args:
        command: The words after `python -m resonance`, such as `"examine digits"`. Of its options
            those about model and data count.

    Returns:
        The model, the data, and the samples that are held out; None for these if the data have no
        such share of their own.

    Raises:
        TypeError: If `command` is no text.
        ValueError: If it is no command that examines anything, or what it names is not there.

    Examples:
        >>> from_command("examine timm:resnet18 --data nowhere")
        Traceback (most recent call last):
            ...
        ValueError: `command`: --data: no file or folder nowhere; expected a folder of images ...
    """
    if not isinstance(command, str):
        raise TypeError(f"`command`: expected text, got {type(command).__name__}")

    arguments = _parse(command)
    try:
        subject = load_subject(arguments)
    except Mistake as error:
        raise ValueError(f"`command`: {error}") from error
    return subject.model, subject.data, subject.held_out


def _parse(command: str) -> Any:
    try:
        words = shlex.split(command)
    except ValueError as error:  # a quotation mark without its partner
        raise ValueError(f"`command`: {error}, in {command!r}") from error
    if not words or words[0] != "examine":
        raise ValueError(f"`command`: expected 'examine MODEL --data DATA', got {command!r}")

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return parse_arguments(words)
    except SystemExit:
        # The parser tells people, and ends; here it is a caller that must know.
        sentence = said.getvalue().strip().removeprefix("resonance examine: ")
        raise ValueError(f"`command`: {sentence}") from None
