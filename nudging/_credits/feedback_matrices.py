from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
import xarray as xr
from torch import Tensor

from nudging._credits.output_error import output_error
from nudging._credits.positions import as_rows, spread_rows
from nudging._credits.saving import check_kind, read_settings, read_tensors, to_dataset
from nudging._replay.state import State


class DirectFeedback:
    """The output error through one fixed random matrix per block; see `direct_feedback`."""

    def __init__(
        self, *, seed: int = 0, scale: float | None = None, reuse_last: bool = True
    ) -> None:
        if scale is not None and not 0 < scale < float("inf"):
            raise ValueError(f"`scale`: expected a positive number or None, got {scale}")
        self.settings: dict[str, Any] = {"seed": seed, "scale": scale, "reuse_last": reuse_last}
        self.matrices: dict[str, Tensor] = {}  # block -> (feature, class)

    def __call__(self, state: State) -> dict[str, Tensor]:
        error = as_rows(output_error(state), "`model` outputs")
        widths = {b: as_rows(h, f"block {b!r}").shape[2] for b, h in state.hidden.items()}
        if not self.matrices:
            self.matrices = self._draw(widths, error.shape[2])
        known_matrices(self.matrices, widths, error.shape[2])
        return self._credit(error, state)

    def _credit(self, error: Tensor, state: State) -> dict[str, Tensor]:
        return {
            block: spread_rows(error @ self.matrices[block].to(h).T, h, f"block {block!r}")
            for block, h in state.hidden.items()
        }

    def _draw(self, widths: Mapping[str, int], classes: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.settings["seed"])
        scale = self.settings["scale"] or classes**-0.5
        matrices: dict[str, Tensor] = {}
        blocks = list(widths)
        for block in blocks:
            before = blocks[-2] if len(blocks) > 1 else block
            last = self.settings["reuse_last"] and block == blocks[-1] != before
            if last and widths[block] == widths[before]:
                matrices[block] = matrices[before]
            else:
                matrices[block] = scale * torch.randn(widths[block], classes, generator=generator)
        return matrices

    def state_dict(self) -> dict[str, Any]:
        """Settings and matrices, for `torch.save`."""
        own = {"settings": dict(self.settings), "matrices": dict(self.matrices)}
        return {"credit": type(self).__name__, **own}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        check_kind(self, saved)
        self.settings, self.matrices = dict(saved["settings"]), dict(saved["matrices"])

    def to_dataset(self) -> xr.Dataset:
        """Everything needed to repeat the measurement; `nudging.load_credit` reads it."""
        return to_dataset(type(self).__name__, self.settings, self.matrices)

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset) -> Self:
        """The credit that `to_dataset` wrote."""
        credit = cls(**read_settings(dataset))
        credit.matrices = read_tensors(dataset)
        return credit


def direct_feedback(
    *, seed: int = 0, scale: float | None = None, reuse_last: bool = True
) -> DirectFeedback:
    """Direct feedback alignment: the output error through a fixed random matrix for every block.

    `a_l = e B_l^T`, with `e` the gradient of a sample's loss with respect to the outputs (softmax
    minus one-hot under cross-entropy) and Gaussian `B_l` of shape `(feature, class)`. The matrices
    are drawn at the first call, for the blocks seen there, and stay: a network trained with them
    aligns with these and no others, so save them with it.

    Token sequences and feature maps have one matrix for all positions. Every position gets the
    error at its own place if the outputs have as many (a language model), else the same
    credit (a classifier: class token and patches alike). Feature maps must have channels first;
    those of a Swin transformer do not.

    Args:
        seed: Decides the matrices.
        scale: Their standard deviation; `1 / sqrt(classes)` by default.
        reuse_last: The last two blocks share a matrix, if they are equally wide. In the credit
            audit block l is trained by the credit of its input, so that the last state has none.

    Returns:
        A credit, with `matrices`, `state_dict`, `load_state_dict`, `to_dataset`.

    Reference:
        Nokland, Direct Feedback Alignment Provides Learning in Deep Neural Networks, 2016.
    """
    return DirectFeedback(seed=seed, scale=scale, reuse_last=reuse_last)


def known_matrices(matrices: Mapping[str, Tensor], widths: Mapping[str, int], classes: int) -> None:
    """Refuse blocks that had no matrix drawn, or another width, and other outputs."""
    drawn: Sequence[str] = list(matrices)
    known = matrices[drawn[-1]].shape[1]
    if known != classes:
        raise ValueError(
            f"`credit`: expected {known} outputs, as when the feedback was drawn, got {classes}"
        )
    for block, width in widths.items():
        if block not in matrices:
            raise ValueError(f"`credit`: has feedback for blocks {drawn}, not for {block!r}")
        if len(matrices[block]) != width:
            raise ValueError(
                f"`credit` at block {block!r}: expected {len(matrices[block])} features, as when "
                f"the feedback was drawn, got {width}"
            )
