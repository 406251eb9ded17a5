from dataclasses import dataclass

from torch import Tensor

from nudging._credits.credit import credit_factory
from nudging._replay.draws import draw_directions
from nudging._replay.state import State
from resonance_toolkit import check_whole


@dataclass(frozen=True)
class Random:
    """A Gaussian direction for every sample and block; made by `random`."""

    seed: int

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Draw one tensor per block, like its output."""
        return {
            name: next(draw_directions(state, name, self.seed, "credit")) for name in state.blocks
        }


@credit_factory
def random(seed: int = 0) -> Random:
    """A credit without information: a Gaussian direction for every sample and block.

    The direction of a sample does not depend on the batch that it is in.

    Args:
        seed: Determines the directions.

    Raises:
        ValueError: If the seed is not a whole number of at least 0.

    Examples:
        >>> random(seed=1)
        Random(seed=1)
    """
    return Random(check_whole("seed", seed, at_least=0))
