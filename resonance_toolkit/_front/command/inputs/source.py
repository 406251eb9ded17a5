"""What all forms of DATA have in common."""

from dataclasses import dataclass
from typing import Any

from resonance_toolkit._front.command.inputs.libraries import LoadedModel
from resonance_toolkit._front.command.settings import Preparation


@dataclass(frozen=True)
class Prepared:
    """Data that every verb understands, what is held out (None: some of it), and both in words."""

    data: Any
    words: str
    held_out: Any = None


class Source:
    """Data that waits for its model.

    `n_classes`, `channels` and `image_size` are None where they are unknown or mean nothing.
    """

    n_classes: int | None = None
    channels: int | None = None
    image_size: tuple[int, int] | None = None
    is_text: bool = False

    def prepare(self, loaded: LoadedModel, options: Preparation) -> Prepared:
        """Make the data fit for a model."""
        raise NotImplementedError
