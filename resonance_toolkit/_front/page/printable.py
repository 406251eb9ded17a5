"""Names as matplotlib and XML can show them, whatever a user has called things.

A dollar would start a formula, a control character is in no XML, and a name of 200 letters leaves
no room for the picture.
"""

from typing import Any

import numpy as np
import xarray as xr

_MOST_LETTERS = 44


def printable(dataset: xr.Dataset) -> xr.Dataset:
    """Return a result in which all names can be drawn: coordinates, words in values, attributes.

    Examples:
        >>> printable(xr.Dataset(coords={"layer": ["a$b$", "x" * 60]}))["layer"].values.tolist()
        ['a\\\\$b\\\\$', 'xxxxxxxxxxxxxxxxxxxxx\u2026xxxxxxxxxxxxxxxxxxxxxx']
    """
    copy = dataset.copy()
    for name, variable in dataset.variables.items():
        attributes = _printable_attributes(variable.attrs)
        values: Any = variable.values
        if _holds_words(values):
            values = _printable_words(values)

        copy[name] = (variable.dims, values, attributes)

    copy.attrs = _printable_attributes(dataset.attrs)
    return copy


def printable_text(text: str, *, most: int = _MOST_LETTERS) -> str:
    """Return one line that matplotlib writes as it stands.

    Examples:
        >>> printable_text("cost in $")
        'cost in \\\\$'
    """
    letters = "".join(letter if letter.isprintable() else " " for letter in text)
    return _shorten_text(letters, most).replace("$", r"\$")


def _printable_words(values: Any) -> Any:
    words = [str(word) for word in values.ravel()]
    labels = [printable_text(word) for word in words]

    # Names that differ still do: what selects by name would find two.
    if len(set(labels)) < len(set(words)):
        labels = [printable_text(word, most=len(word)) for word in words]

    return np.array(labels).reshape(values.shape)


def _printable_attributes(attributes: Any) -> dict[Any, Any]:
    return {
        key: printable_text(value, most=120) if isinstance(value, str) else value
        for key, value in attributes.items()
    }


def _holds_words(values: Any) -> bool:
    if values.dtype.kind in "US":
        return True
    return values.dtype == object and all(isinstance(value, str) for value in values.ravel())


def _shorten_text(text: str, most: int) -> str:
    """Leave out the middle: layers of one model begin alike and end alike."""
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}\u2026{text[len(text) - (most - 1 - head) :]}"
