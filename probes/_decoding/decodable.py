from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from resonance_toolkit import is_sharded


class DecodableLayer(Protocol):
    """One layer, in two parts: what later positions need of this one, and its own output."""

    def project(self, x: Tensor, positions: Tensor, /) -> tuple[Tensor, ...]:
        """Keys and values, each `(1, ..., position, feature)`, of inputs `(1, position, width)`."""

    def attend(self, x: Tensor, positions: Tensor, /, *cache: Tensor) -> Tensor:
        """Outputs `(1, position, width)` at the last positions of the cache, causally.

        `cache` holds what `project` returned, from position 0 up to the last of `positions`.
        """


class Decodable(Protocol):
    """What `probes.generate` asks of a causal language model."""

    layers: Sequence[DecodableLayer]

    def embed(self, ids: Tensor, positions: Tensor, /) -> Tensor:
        """Inputs `(1, position, width)` of the first layer, for tokens `(1, position)`."""

    def head(self, hidden: Tensor, /) -> Tensor:
        """Logits `(1, position, vocabulary)` of any layer's output."""


def as_decodable(model: nn.Module) -> Decodable:
    """The model itself, once it is known to offer what decoding needs."""
    layers = getattr(model, "layers", None)
    missing = [name for name in ("embed", "head") if not callable(getattr(model, name, None))]
    if not isinstance(layers, Sequence | nn.ModuleList | nn.Sequential) or not len(layers):
        missing.append("layers")
    else:
        parts = ("project", "attend")
        missing += [
            f"layers.{i}.{part}"
            for i, layer in enumerate(layers)
            for part in parts
            if not callable(getattr(layer, part, None))
        ]
    if missing:
        raise TypeError(
            "`model`: expected a probes.Decodable (embed, head, and layers that offer project and "
            f"attend), got a {type(model).__name__} without {', '.join(missing)}"
        )
    if is_sharded(model):  # its parts are called by themselves, where nothing gathers parameters
        raise ValueError(
            "`model`: expected whole parameters, got some that fully_shard has split; decode with "
            "a copy that has the full state dict"
        )
    return model  # type: ignore[return-value]  # just checked


class Decoding:
    """Hidden states, keys and values of one sequence, filled layer by layer as they are needed."""

    def __init__(self, model: Decodable, length: int) -> None:
        self.model, self.length = model, length
        self.states: list[Tensor | None] = [None] * (len(model.layers) + 1)
        self.caches: list[list[Tensor | None]] = [[] for _ in model.layers]
        self.known = [0] * len(model.layers)  # positions whose keys and values a layer has

    def append(self, ids: Tensor) -> None:
        """Put tokens `(1, position)` after those that the first layer has seen."""
        positions = torch.arange(self.known[0], self.known[0] + ids.shape[1], device=ids.device)
        self._write(self.states, 0, self.model.embed(ids, positions), self.known[0], axis=1)

    def run(self, depth: int, end: int) -> int:
        """Run one layer on all positions before `end` that it lacks; return how many."""
        start, layer = self.known[depth], self.model.layers[depth]
        x = self.state(depth, start, end)
        positions = torch.arange(start, end, device=x.device)
        self._remember(depth, layer.project(x, positions), start)
        cache = [piece[..., :end, :] for piece in self.caches[depth] if piece is not None]
        self._write(self.states, depth + 1, layer.attend(x, positions, *cache), start, axis=1)
        self.known[depth] = end
        return end - start

    def propagate(self, depth: int, end: int) -> int:
        """Let deeper layers take the state at `depth` for their input; return how many did."""
        x = self.state(depth, end - 1, end)
        positions = torch.arange(end - 1, end, device=x.device)
        deeper = range(depth, len(self.known))
        for layer in deeper:
            self._remember(layer, self.model.layers[layer].project(x, positions), end - 1)
            self.known[layer] = end
        return len(deeper)

    def state(self, depth: int, start: int, end: int) -> Tensor:
        """Outputs of the layer before `depth`, `(1, position, width)`."""
        states = self.states[depth]
        assert states is not None
        return states[:, start:end]

    def _remember(self, depth: int, pieces: tuple[Tensor, ...], start: int) -> None:
        cache = self.caches[depth]
        cache.extend([None] * (len(pieces) - len(cache)))
        for i, piece in enumerate(pieces):
            self._write(cache, i, piece, start, axis=-2)

    def _write(
        self, buffers: list[Tensor | None], i: int, piece: Tensor, start: int, *, axis: int
    ) -> None:
        buffer = buffers[i]
        if buffer is None:  # shape and type are known only now
            shape = list(piece.shape)
            shape[axis] = self.length
            buffer = buffers[i] = piece.new_empty(shape)
        buffer.narrow(axis, start, piece.shape[axis]).copy_(piece)
