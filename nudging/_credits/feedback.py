from collections.abc import Mapping

import torch
from torch import Tensor

from nudging._credits.feedback_matrices import DirectFeedback
from nudging._credits.positions import spread_rows
from nudging._replay.state import State


class Feedback(DirectFeedback):
    """The output error through a chain of fixed random matrices; see `feedback`."""

    def __init__(self, *, seed: int = 0, scale: float | None = None) -> None:
        super().__init__(seed=seed, scale=scale)
        del self.settings["reuse_last"]

    def _credit(self, error: Tensor, state: State) -> dict[str, Tensor]:
        rows, chain = error, {}
        for block in reversed(self.matrices):
            rows = chain[block] = rows @ self.matrices[block].to(rows).T
        return {b: spread_rows(chain[b], h, f"block {b!r}") for b, h in state.hidden.items()}

    def _draw(self, widths: Mapping[str, int], classes: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.settings["seed"])
        following = [*list(widths.values())[1:], classes]
        matrices = {}
        for (block, width), after in zip(widths.items(), following, strict=True):
            scale = self.settings["scale"] or after**-0.5
            matrices[block] = scale * torch.randn(width, after, generator=generator)
        return matrices


def feedback(*, seed: int = 0, scale: float | None = None) -> Feedback:
    """Feedback alignment: the output error through fixed random matrices, block after block.

    From the last block back, `a_L = e B_L^T` and `a_l = a_{l+1} B_l^T`, with Gaussian matrices
    drawn at the first call, as in `direct_feedback`. They stand for whatever lies between two
    blocks; several positions (tokens, pixels) share them.

    Args:
        seed: Decides the matrices.
        scale: Their standard deviation; 1 / sqrt(numbers that go in) by default, which keeps
            the length of a credit.

    Returns:
        A credit, with `matrices`, `state_dict`, `load_state_dict`, `to_dataset`.

    Reference:
        Lillicrap et al., Random synaptic feedback weights support error backpropagation, 2016.
    """
    return Feedback(seed=seed, scale=scale)
