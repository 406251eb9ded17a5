"""Random directions that belong to samples, so that the size of a batch does not matter."""

import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from nudging._replay.state import State


def draws(state: State, block: str, seed: int, use: str = "") -> Iterator[Tensor]:
    """Without end, Gaussian tensors like a block's output, the same for a sample in any batch.

    Other ones for another `use`.
    """
    like = state.hidden[block]
    places = range(state.first, state.first + len(like))
    generators = [torch.Generator().manual_seed(_mix(seed, use + block, place)) for place in places]
    while True:
        rows = [torch.randn(like.shape[1:], generator=g, dtype=torch.float64) for g in generators]
        yield torch.stack(rows).to(like)


def _mix(seed: int, block: str, place: int) -> int:
    words = np.random.SeedSequence([seed, zlib.crc32(block.encode()), place]).generate_state(2)
    return int(words[0]) << 31 | int(words[1]) >> 1
