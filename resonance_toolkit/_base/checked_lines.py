"""Records of one line each: a JSON object, with a checksum of its own.

A file of such lines can be added to while it grows, and what a kill tore off is found again: the
last line has no end, or its checksum (`crc32`) is another one.
"""

import json
import zlib
from typing import Any


def to_checked_line(fields: dict[str, Any]) -> str:
    """Write names and values as a line, with all digits of every number.

    Examples:
        >>> from_checked_line(to_checked_line({"step": 3, "loss": 0.1}).encode())
        {'step': 3, 'loss': 0.1}
    """
    return json.dumps(fields | {"crc32": _checksum(fields)}) + "\n"


def from_checked_line(line: bytes) -> dict[str, Any]:
    """Read a line, with its end or without.

    Raises:
        TypeError: If it holds no names and values.
        ValueError: If it is damaged.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise TypeError("expected names and values")
    if fields.pop("crc32", None) != _checksum(fields):
        raise ValueError("its contents and its checksum do not agree")
    return fields


def _checksum(fields: dict[str, Any]) -> int:
    # A number is written with all digits, so that reading and writing it gives the same text.
    return zlib.crc32(json.dumps(fields).encode())
