"""Text for the examples: the documentation inside Python, or any file, never one for the other."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

WINDOW = 64
PARTS = ("train", "calibration", "validation")
# Two sentences of the same 30 characters, like those a published study measured in place of text.
SENTENCES = (
    "The quick brown fox jumps over the lazy dog, as they do. ",
    "Two zebras, my black hens and a quiet fox. The jumpy vixen of Tom dig. ",
)


@dataclass(frozen=True)
class Corpus:
    """Three consecutive parts of a text as character numbers, each `(position,)`.

    The vocabulary is that of the training part. Characters that only the other parts have are left
    out there, and counted in `unknown`.
    """

    name: str
    vocabulary: str
    train: Tensor
    calibration: Tensor
    validation: Tensor
    unknown: tuple[int, int, int] = (0, 0, 0)

    def decode(self, ids: Tensor) -> str:
        """The text of character numbers `(position,)`."""
        return "".join(self.vocabulary[i] for i in ids.tolist())


def load(path: Path | None = None, *, limit: int | None = None) -> Corpus:
    """Load the text at `path`, or Python's documentation if there is none, split by position.

    Args:
        path: A text in UTF-8.
        limit: Characters to take, from the start; all by default.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the text is empty, or a part is shorter than a window.
    """
    if path is None:
        return split(documentation()[:limit], name="pydoc_data.topics")

    if not Path(path).is_file():
        raise FileNotFoundError(f"`text`: no file {path}; without --text, Python's documentation")
    return split(Path(path).read_text(encoding="utf-8")[:limit], name=Path(path).name)


def documentation() -> str:
    """Return the English of `pydoc_data.topics`; a paragraph that recurs is kept once.

    Sections are repeated under several topics, which would put validation text into training.
    """
    # A dictionary keeps the first of equal paragraphs, in order.
    paragraphs = (
        paragraph for topic in sorted(topics) for paragraph in topics[topic].strip().split("\n\n")
    )
    return "\n\n".join(dict.fromkeys(paragraphs))


def periodic(*, train: int = 100_000, other: int = 10_000) -> Corpus:
    """Repeat one sentence for training, another for the rest: what not to measure on."""
    first, second = SENTENCES
    training = (first * train)[:train]
    calibration = (second * other)[:other]
    validation = (second * other)[7 : other + 7]  # the same, begun at another letter
    return encode([training, calibration, validation], name="two repeated sentences")


def split(text: str, *, name: str, shares: tuple[float, ...] = (0.8, 0.1, 0.1)) -> Corpus:
    """Cut a text into training, calibration and validation, in this order."""
    if len(shares) != 3 or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise ValueError(f"`shares`: expected three positive numbers of sum 1, got {shares}")
    if not text:
        raise ValueError(f"`text`: expected some, got an empty text ({name})")

    ends = [0, round(len(text) * shares[0]), round(len(text) * (shares[0] + shares[1])), len(text)]
    return encode([text[start:end] for start, end in pairwise(ends)], name=name)


def encode(parts: list[str], *, name: str) -> Corpus:
    """Number the characters by the vocabulary of the first part."""
    vocabulary = "".join(sorted(set(parts[0])))
    number_of = {character: number for number, character in enumerate(vocabulary)}

    # Characters that training lacks have no number, and are left out.
    train, calibration, validation = (
        torch.tensor([number_of[character] for character in part if character in number_of])
        for part in parts
    )

    for part_name, ids in zip(PARTS, (train, calibration, validation), strict=True):
        if len(ids) <= WINDOW:
            raise ValueError(
                f"`text`: expected at least {WINDOW + 1} known characters for {part_name} (a "
                f"window and the character after it), got {len(ids)} ({name})"
            )

    unknown = (
        len(parts[0]) - len(train),
        len(parts[1]) - len(calibration),
        len(parts[2]) - len(validation),
    )
    return Corpus(name, vocabulary, train, calibration, validation, unknown)


def windows(ids: Tensor, length: int = WINDOW) -> tuple[Tensor, Tensor]:
    """Cut windows `(sample, position)` that do not overlap, and the same one character later."""
    count = (len(ids) - 1) // length
    if count < 1:
        raise ValueError(f"`ids`: expected at least {length + 1}, got {len(ids)}")

    size = count * length
    inputs = ids[:size].view(count, length)
    targets = ids[1 : size + 1].view(count, length)
    return inputs, targets
