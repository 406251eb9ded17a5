"""What the user can put right, told in one sentence: the command ends with it and with code 2."""

import difflib
from collections.abc import Iterable


class Mistake(Exception):
    """A sentence that names the argument, what was expected and what came."""


def closest(name: str, names: Iterable[str], *, n: int = 3) -> str:
    """Suggest names that look alike, for the end of a sentence; nothing if none does.

    Examples:
        >>> closest("mse_los", ["mse_loss", "l1_loss", "kl_div"], n=1)
        '; did you mean mse_loss?'
        >>> closest("xyz", ["mse_loss"])
        ''
    """
    similar = difflib.get_close_matches(name, list(names), n=n)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


def first_line(error: BaseException) -> str:
    """Return what an error says first: torch and transformers go on for a page.

    Examples:
        >>> first_line(ValueError("too small\\nStack: ..."))
        'too small'
        >>> first_line(KeyError())
        'KeyError'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
