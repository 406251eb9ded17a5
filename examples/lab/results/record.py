"""The table of a result (`.json`), read back: whole, or not at all."""

import json
from pathlib import Path
from typing import Any

from lab.results.publish import Row

_KINDS: dict[str, type] = {"budget": str, "figures": list, "rows": list}


def read_record(path: Path) -> dict[str, Any] | None:
    """What `lab.results.publish.publish` wrote; None if there is no such file.

    Raises:
        ValueError: If it is damaged; says how.
    """
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
        for name, kind in _KINDS.items():
            if not isinstance(found[name], kind):
                raise TypeError(f"{name}: expected a {kind.__name__}")
        if not all(isinstance(figure, str) for figure in found["figures"]):
            raise TypeError("figures: expected names")
        for row in found["rows"]:
            _check(row)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path.name} is damaged ({type(error).__name__}: {error})") from None
    whole: dict[str, Any] = found
    return whole


def _check(row: Any) -> None:
    whole = Row(**row)
    texts = isinstance(whole.quantity, str) and isinstance(whole.note, str)
    values = all(isinstance(v, int | float | str | None) for v in (whole.published, whole.here))
    if not texts or not values:
        raise TypeError(f"rows: expected texts and numbers, got {row}")
