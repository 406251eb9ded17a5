from dataclasses import dataclass

from torch import Tensor

from nudging._draws import draws
from nudging._state import State


@dataclass(frozen=True)
class random:
    """A credit that knows nothing: a Gaussian direction for every sample and block.

    A sample gets the same direction whatever batch it comes in.

    Args:
        seed: Decides the directions.

    Example:
        >>> random(seed=1)
        random(seed=1)
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed < 0:
            raise ValueError(f"`seed`: expected a whole number of at least 0, got {self.seed!r}")

    def __call__(self, state: State) -> dict[str, Tensor]:
        """Draw one tensor per block, like its output."""
        return {name: next(draws(state, name, self.seed)) for name in state.blocks}
