"""Hidden states, keys and values of one sequence while it is decoded.

A layer that tokens have skipped lags behind: it has keys and values of fewer positions than the
layers before it. It catches up in one of two ways, as `probes.generate` is told: `run` on all
positions it lacks, or `propagate`, which fills them in from the state where a token left.
"""

import torch
from torch import Tensor

from probes._decoding.decodable import Decodable


class SequenceState:
    """The states and caches of all layers, filled layer by layer as they are needed.

    State 0 is the embedding; state d is the output of the d-th layer.
    """

    def __init__(self, model: Decodable, length: int) -> None:
        n_layers = len(model.layers)
        self.model = model
        self.length = length
        self.states: list[Tensor | None] = [None] * (n_layers + 1)
        self.caches: list[list[Tensor | None]] = [[] for _ in range(n_layers)]
        self.n_cached = [0] * n_layers  # positions whose keys and values a layer has

    def append(self, ids: Tensor) -> None:
        """Put tokens `(1, position)` after those that the first layer has seen."""
        start = self.n_cached[0]
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        self._write(self.states, 0, self.model.embed(ids, positions), start, axis=1)

    def run(self, depth: int, end: int) -> int:
        """Run one layer on all positions before `end` that it lacks; return how many."""
        layer = self.model.layers[depth]
        start = self.n_cached[depth]
        x = self.state(depth, start, end)
        positions = torch.arange(start, end, device=x.device)

        # Keys and values first: positions attend to themselves, too.
        self._extend_cache(depth, layer.project(x, positions), start)
        cache = [piece[..., :end, :] for piece in self.caches[depth] if piece is not None]
        output = layer.attend(x, positions, *cache)

        self._write(self.states, depth + 1, output, start, axis=1)
        self.n_cached[depth] = end
        return end - start

    def propagate(self, depth: int, end: int) -> int:
        """Let deeper layers take the state at `depth` for their input; return how many did."""
        x = self.state(depth, end - 1, end)
        positions = torch.arange(end - 1, end, device=x.device)

        deeper_layers = range(depth, len(self.n_cached))
        for index in deeper_layers:
            pieces = self.model.layers[index].project(x, positions)
            self._extend_cache(index, pieces, end - 1)
            self.n_cached[index] = end
        return len(deeper_layers)

    def state(self, depth: int, start: int, end: int) -> Tensor:
        """Return the inputs of the layer number `depth`, `(1, position, width)`."""
        states = self.states[depth]
        assert states is not None
        return states[:, start:end]

    def _extend_cache(self, depth: int, pieces: tuple[Tensor, ...], start: int) -> None:
        cache = self.caches[depth]
        cache.extend([None] * (len(pieces) - len(cache)))
        for index, piece in enumerate(pieces):
            self._write(cache, index, piece, start, axis=-2)

    def _write(
        self, buffers: list[Tensor | None], index: int, piece: Tensor, start: int, *, axis: int
    ) -> None:
        buffer = buffers[index]

        # Made for the whole sequence by the first piece, which has the shape and the type.
        if buffer is None:
            shape = list(piece.shape)
            shape[axis] = self.length
            buffer = piece.new_empty(shape)
            buffers[index] = buffer

        buffer.narrow(axis, start, piece.shape[axis]).copy_(piece)
