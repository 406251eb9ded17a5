from dataclasses import dataclass

from torch import Tensor

from nudging._measures.batches import check_whole
from nudging._replay.draws import draws
from nudging._replay.state import State


@dataclass(frozen=True)
class Random:
    """A Gaussian direction for every sample and block; made by `random`."""

    seed: int

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Draw one tensor per block, like its output."""
        # Not the directions of `correlation`, which is to know nothing about this credit.
        return {name: next(draws(state, name, self.seed, "credit ")) for name in state.blocks}


def random(seed: int = 0) -> Random:
    """A credit that knows nothing: a Gaussian direction for every sample and block.

    A sample gets the same direction whatever batch it comes in.

    Args:
        seed: Decides the directions.

    Raises:
        ValueError: If the seed is no whole number of at least 0.

    Examples:
        >>> random(seed=1)
        Random(seed=1)
    """
    check_whole("seed", seed, 0)
    return Random(seed)
