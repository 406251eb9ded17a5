"""Random directions that belong to samples, so that the size of a batch does not matter."""

import zlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nudging._replay.state import State

# Put before the name of a block when its generators are seeded.
_PREFIXES = {"perturbation": "", "credit": "credit "}


def draw_directions(
    state: State, block: str, seed: int, use: Literal["perturbation", "credit"]
) -> Iterator[Tensor]:
    """Yield Gaussian tensors like a block's output, without end.

    A sample gets the same numbers in any batch, padded or not: each has a generator of its own,
    seeded by its place in the data. Padded positions get zeros.

    Args:
        state: The batch.
        block: One of its blocks.
        seed: Determines the numbers.
        use: `correlation` draws its perturbations, `random` its credits. Were both the same for one
            seed, the control that must know nothing would point along the very directions that it
            is tested on, and correlate with them.
    """
    hidden = state.hidden[block]
    stream = _PREFIXES[use] + block
    places = range(state.first_sample, state.first_sample + len(hidden))
    generators = [torch.Generator().manual_seed(_mix_seed(seed, stream, place)) for place in places]

    positions = state.positions(block)
    counts = [None] * len(hidden) if positions is None else list(positions.cpu())

    while True:
        rows = [
            _draw_row(hidden.shape[1:], counts_of_sample, generator)
            for counts_of_sample, generator in zip(counts, generators, strict=True)
        ]
        yield torch.stack(rows).to(hidden)


def _draw_row(shape: torch.Size, counts: Tensor | None, generator: torch.Generator) -> Tensor:
    # In double precision on the CPU, so that every device and dtype gets the same direction.
    on_cpu: Any = {"dtype": torch.float64, "device": "cpu"}
    if counts is None:
        return torch.randn(shape, generator=generator, **on_cpu)

    row = torch.zeros(shape, **on_cpu)
    counted_shape = (int(counts.sum()), *shape[1:])
    row[counts] = torch.randn(counted_shape, generator=generator, **on_cpu)
    return row


def _mix_seed(seed: int, stream: str, place: int) -> int:
    words = np.random.SeedSequence([seed, zlib.crc32(stream.encode()), place]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1
