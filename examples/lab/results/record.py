"""The table of a result (`.json`), read back: whole, or not at all."""

import json
from pathlib import Path
from typing import Any

from lab.results.verdicts import Row

_TYPES: dict[str, type] = {"budget": str, "figures": list, "rows": list}


def read_record(path: Path) -> dict[str, Any] | None:
    """Read what `lab.results.publish.publish` wrote; None if there is no such file.

    Raises:
        ValueError: If it is damaged; says how.
    """
    if not path.is_file():
        return None

    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        _check_record(record)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path.name} is damaged ({type(error).__name__}: {error})") from None
    return record


def _check_record(record: Any) -> None:
    for name, expected_type in _TYPES.items():
        if not isinstance(record[name], expected_type):
            raise TypeError(f"{name}: expected a {expected_type.__name__}")

    if not all(isinstance(figure, str) for figure in record["figures"]):
        raise TypeError("figures: expected names")

    for entry in record["rows"]:
        row = Row(**entry)  # refuses entries that a row has not, and unknown verdicts
        texts = (row.quantity, row.note, row.p, row.printed)
        values = (row.published, row.here, row.deviation, row.low, row.high)
        has_texts = all(isinstance(text, str) for text in texts)
        has_values = all(isinstance(value, int | float | str | None) for value in values)
        if not has_texts or not has_values:
            raise TypeError(f"rows: expected texts and numbers, got {entry}")
