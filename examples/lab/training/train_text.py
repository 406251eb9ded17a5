"""Training character models with a loss at every exit; finished models are kept on disk."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

import probes
from lab.backbones.character_model import CharacterModel
from lab.data.text import Corpus, windows
from lab.results.files import read_state
from lab.results.publish import write_atomically
from probes import weightings


@dataclass(frozen=True)
class Variant:
    """A way to weigh the losses of the layers: a preset of `probes.weightings`, and its alpha."""

    preset: str
    alpha: float | None = None
    depth: int = 3

    @property
    def weights(self) -> Callable[..., tuple[float, ...]]:
        """For `probes.attach_exits`."""
        preset = getattr(weightings, self.preset)
        return preset if self.alpha is None else preset(self.alpha)

    def __str__(self) -> str:
        name = self.preset.replace("_", " ") + (f" {self.alpha:g}" if self.alpha else "")
        return name if self.depth == 3 else f"{name}, {self.depth} layer"


def train(
    corpus: Corpus,
    variant: Variant,
    *,
    seed: int,
    epochs: int,
    rate: float = 1e-3,
    batch: int = 32,
    cache: Path | None = None,
) -> CharacterModel:
    """Train a model by AdamW with gradients clipped at norm 1, or find it in the cache.

    The seed decides weights and order alike for all variants: they can be compared in pairs.
    """
    torch.manual_seed(seed)
    model = CharacterModel(len(corpus.vocabulary), depth=variant.depth)
    kept = cache / f"{_key(corpus, variant, seed, epochs, rate, batch)}.pt" if cache else None
    weights = read_state(kept, having=model.state_dict()) if kept else None
    if weights is not None:
        model.load_state_dict(weights)
        return model.eval()
    x, y = windows(corpus.train)
    exits = probes.attach_exits(model, "layers.*", weights=variant.weights, sample=x[:2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    order = torch.Generator().manual_seed(seed)
    for _ in tqdm(range(epochs), desc=f"{variant}, seed {seed}", unit="epoch", disable=None):
        for rows in torch.randperm(len(x), generator=order).split(batch):
            optimizer.zero_grad()
            model(x[rows])
            exits.loss(y[rows]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    exits.detach()
    if kept:
        write_atomically({kept: partial(torch.save, model.state_dict())})
    return model.eval()


def _key(corpus: Corpus, variant: Variant, *settings: float) -> str:
    text = corpus.train.numpy().tobytes() + corpus.vocabulary.encode()
    name = json.dumps([asdict(variant), settings]).encode()
    return hashlib.blake2b(text + name, digest_size=10).hexdigest()
