"""What the options say about models and data, before either is loaded."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Preparation:
    """How images are made fit for a model: their size in pixels, and what is subtracted from each
    channel and by what it is divided, black being 0 and white 1. None: left to others.
    """

    image_size: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def or_else(self, defaults: "Preparation") -> "Preparation":
        """Fill in what is None."""
        return Preparation(
            self.image_size if self.image_size is not None else defaults.image_size,
            self.mean if self.mean is not None else defaults.mean,
            self.std if self.std is not None else defaults.std,
        )


@dataclass(frozen=True)
class ModelRequest:
    """A model as it is asked for.

    `n_classes`, `channels` and `image_size` are what the data and the options say; None is unknown.
    """

    text: str
    seed: int = 0
    n_classes: int | None = None
    channels: int | None = None
    image_size: int | tuple[int, int] | None = None
    is_pretrained: bool = False
    is_about_text: bool = False
    checkpoint: Path | None = None
