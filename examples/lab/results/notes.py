"""Notes that many rows of a table share: each gets a letter, and is said once."""

import string
from collections import Counter
from collections.abc import Mapping, Sequence

from lab.results.verdicts import Row

# Notes of so many rows, and of such a share of a table, get a letter; short ones need none.
_LEAST, _SHARE = 4, 0.25
_SHORT = 21  # characters: "intervals do not meet"


def letter_notes(rows: Sequence[Row]) -> dict[str, str]:
    """Give a letter to each note that many rows of a table share.

    Examples:
        >>> note = "digits, which are not CIFAR-10"
        >>> letter_notes([Row("gain", 9.2, 8.0, note=f"{note}; one seed")] * 4)
        {'digits, which are not CIFAR-10': 'a'}
    """
    counts = Counter(note for row in rows for note in row.note.split("; "))
    least = max(_LEAST, _SHARE * len(rows))
    shared = [note for note, count in counts.items() if count >= least and len(note) > _SHORT]
    return dict(zip(shared, string.ascii_lowercase, strict=False))


def abbreviate(note: str, letters: Mapping[str, str], *, mark: str = "") -> str:
    """Write letters for what has one, then what has none.

    Args:
        note: Of a row.
        letters: From `letter_notes`.
        mark: Put around each letter.

    Examples:
        >>> abbreviate("digits; intervals meet", {"digits": "a"}, mark="*")
        '*a*; intervals meet'
    """
    notes = note.split("; ")
    marks = " ".join(f"{mark}{letters[each]}{mark}" for each in notes if each in letters)
    words = [each for each in notes if each not in letters]
    return "; ".join(filter(None, [marks, *words]))
