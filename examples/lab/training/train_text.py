"""Training character models with a loss at every exit; finished models are kept on disk."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows
from lab.results.files import check_writable, read_state, write_atomically
from probes import weightings
from resonance_toolkit import tensor_writer, track

PRESETS: dict[str, Callable[..., Any]] = {
    "standard": weightings.standard,
    "deep_supervision": weightings.deep_supervision,
    "auxiliary": weightings.auxiliary,
    "asymmetric": weightings.asymmetric,
    "asymmetric_l2": weightings.asymmetric_l2,
}


@dataclass(frozen=True)
class Variant:
    """A way to weigh the losses of the layers.

    Attributes:
        preset: One of `PRESETS`.
        alpha: Of the preset; None for one that takes none.
        depth: Layers of the model.
    """

    preset: str
    alpha: float | None = None
    depth: int = 3

    @property
    def weights(self) -> Any:
        """For `probes.attach_exits`."""
        preset = PRESETS[self.preset]
        return preset if self.alpha is None else preset(self.alpha)

    def __str__(self) -> str:
        name = self.preset.replace("_", " ") + (f" {self.alpha:g}" if self.alpha else "")
        return name if self.depth == 3 else f"{name}, {self.depth} layer"


@dataclass(frozen=True, kw_only=True)
class TextRecipe:
    """How to train: AdamW at a constant rate, gradients clipped at norm 1.

    Attributes:
        seed: Decides weights and order alike for all variants: they can be compared in pairs.
        epochs: Passes over the training part.
        rate: AdamW's learning rate.
        batch: Windows in one step.
    """

    seed: int
    epochs: int
    rate: float = 1e-3
    batch: int = 32


def train_text_model(
    corpus: Corpus, variant: Variant, recipe: TextRecipe, *, cache: Path | None = None
) -> CharacterModel:
    """Train a model, or find it in the cache.

    Args:
        corpus: What to read.
        variant: How the losses of the layers are weighed.
        recipe: How to train.
        cache: A folder of finished models; None keeps none.
    """
    torch.manual_seed(recipe.seed)
    model = CharacterModel(len(corpus.vocabulary), depth=variant.depth)

    path = cache / f"{_key(corpus, variant, recipe)}.pt" if cache else None
    weights = read_state(path, required=model.state_dict()) if path else None
    if weights is not None:
        model.load_state_dict(weights)
        return model.eval()

    if path:
        check_writable(path)

    x, y = windows(corpus.train)
    exits = probes.attach_exits(model, "layers.*", weights=variant.weights, sample=x[:2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate)
    generator = torch.Generator().manual_seed(recipe.seed)

    description = f"{variant}, seed {recipe.seed}"
    for _ in track(range(recipe.epochs), description, unit="epoch"):
        for rows in torch.randperm(len(x), generator=generator).split(recipe.batch):
            # The exits listen to the pass; what it returns is not needed.
            optimizer.zero_grad()
            model(x[rows])
            exits.loss(y[rows]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    exits.detach()

    if path:
        write_atomically({path: tensor_writer(model.state_dict())})
    return model.eval()


def _key(corpus: Corpus, variant: Variant, recipe: TextRecipe) -> str:
    text = corpus.train.numpy().tobytes() + corpus.vocabulary.encode()
    settings = json.dumps([asdict(variant), astuple(recipe)]).encode()
    return hashlib.blake2b(text + settings, digest_size=10).hexdigest()
