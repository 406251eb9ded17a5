"""What all forms of DATA have in common."""

from typing import Any

from resonance_toolkit._front.command.libraries import LoadedModel
from resonance_toolkit._front.command.settings import Preparation


class Source:
    """Data that waits for its model.

    `n_classes`, `channels` and `image_size` are None where they are unknown or mean nothing.
    """

    n_classes: int | None = None
    channels: int | None = None
    image_size: tuple[int, int] | None = None
    is_text: bool = False

    def prepare(self, loaded: LoadedModel, asked: Preparation) -> tuple[Any, str]:
        """Give data that every verb understands, and say what was made of it."""
        raise NotImplementedError
