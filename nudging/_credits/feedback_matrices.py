"""Feedback alignment, direct and block after block: an output error through fixed random matrices.

Both rules draw their matrices at the first call, for the blocks seen there, and keep them. They
differ in what a matrix maps from (the outputs, or the next block) and so in its shape and scale.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
import xarray as xr
from torch import Tensor

from nudging._credits.credit import list_settings
from nudging._credits.output_error import output_error
from nudging._credits.positions import as_rows, spread_rows
from nudging._credits.saving import check_kind, check_settings, read_saved, to_dataset
from nudging._replay.state import State
from resonance_toolkit import check_positive, check_whole


class FeedbackMatrices(ABC):
    """What both rules share: settings, matrices by block, and how they are saved.

    Attributes:
        settings: The arguments, by name.
        matrices: By block; empty before the first call.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        check_whole("seed", settings["seed"], at_least=None)
        if settings["scale"] is not None:
            check_positive("scale", settings["scale"])
        self.settings = settings
        self.matrices: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list_settings(self.settings)})"

    def __call__(self, state: State) -> dict[str, Tensor]:
        """The credit of every block, through the same matrices each time."""
        error = as_rows(output_error(state), "`model` outputs")
        widths = {
            block: as_rows(hidden, f"block {block!r}").shape[2]
            for block, hidden in state.hidden.items()
        }

        # Drawn only once: a network that is trained with them aligns with these and no others.
        if not self.matrices:
            self.matrices = self._draw_matrices(widths, error.shape[2])
        self._check_matrices(widths, error.shape[2])
        return self._pass_back(error, state)

    @abstractmethod
    def _draw_matrices(self, widths: Mapping[str, int], classes: int) -> dict[str, Tensor]:
        """Draw one matrix per block, `(feature of the block, what it maps from)`."""

    @abstractmethod
    def _pass_back(self, error: Tensor, state: State) -> dict[str, Tensor]:
        """Take the error `(sample, position, class)` to every block."""

    def _check_matrices(self, widths: Mapping[str, int], classes: int) -> None:
        """Refuse blocks that had no matrix drawn, or another width, and other outputs."""
        drawn_blocks = list(self.matrices)
        drawn_classes = self.matrices[drawn_blocks[-1]].shape[1]
        if drawn_classes != classes:
            raise ValueError(
                f"`credit`: expected {drawn_classes} outputs, as when the feedback was drawn, got "
                f"{classes}"
            )

        for block, width in widths.items():
            if block not in self.matrices:
                raise ValueError(
                    f"`credit`: has feedback for blocks {drawn_blocks}, not for {block!r}"
                )
            if len(self.matrices[block]) != width:
                raise ValueError(
                    f"`credit` at block {block!r}: expected {len(self.matrices[block])} features, "
                    f"as when the feedback was drawn, got {width}"
                )

    def state_dict(self) -> dict[str, Any]:
        """Settings and matrices, for `torch.save`."""
        return {
            "credit": type(self).__name__,
            "settings": dict(self.settings),
            "matrices": dict(self.matrices),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        check_kind(self, saved)
        self.settings = dict(saved["settings"])
        self.matrices = dict(saved["matrices"])

    def to_dataset(self) -> xr.Dataset:
        """Everything needed to repeat the measurement; `nudging.load_credit` reads it."""
        return to_dataset(type(self).__name__, self.settings, self.matrices)

    @classmethod
    def from_dataset(cls, dataset: xr.Dataset) -> Self:
        """The credit that `to_dataset` wrote."""
        saved = read_saved(dataset)
        if any(matrix.dim() != 2 for matrix in saved.tensors.values()):
            raise ValueError("expected matrices")

        check_settings(cls, saved.settings)
        credit = cls(**saved.settings)
        credit.matrices = saved.tensors
        return credit


class DirectFeedback(FeedbackMatrices):
    """The output error through one fixed random matrix per block; see `direct_feedback`."""

    def __init__(
        self, *, seed: int = 0, scale: float | None = None, reuse_last: bool = True
    ) -> None:
        super().__init__({"seed": seed, "scale": scale, "reuse_last": reuse_last})

    def _draw_matrices(self, widths: Mapping[str, int], classes: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.settings["seed"])
        scale = self.settings["scale"] or classes**-0.5
        blocks = list(widths)
        matrices: dict[str, Tensor] = {}

        for index, block in enumerate(blocks):
            is_last = 0 < index == len(blocks) - 1
            block_before = blocks[index - 1]
            is_shared = is_last and widths[block] == widths[block_before]

            if self.settings["reuse_last"] and is_shared:
                matrices[block] = matrices[block_before]
            else:
                matrices[block] = scale * _draw_matrix(widths[block], classes, generator)
        return matrices

    def _pass_back(self, error: Tensor, state: State) -> dict[str, Tensor]:
        credit = {}
        for block, hidden in state.hidden.items():
            rows = error.to(hidden.device) @ self.matrices[block].to(hidden).T
            credit[block] = spread_rows(rows, hidden, f"block {block!r}")
        return credit


class Feedback(FeedbackMatrices):
    """The output error through a chain of fixed random matrices; see `feedback`."""

    def __init__(self, *, seed: int = 0, scale: float | None = None) -> None:
        super().__init__({"seed": seed, "scale": scale})

    def _draw_matrices(self, widths: Mapping[str, int], classes: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.settings["seed"])
        widths_after = [*list(widths.values())[1:], classes]
        matrices = {}

        for (block, width), width_after in zip(widths.items(), widths_after, strict=True):
            # A sum of n terms with variance 1/n keeps the length of what comes in.
            scale = self.settings["scale"] or width_after**-0.5
            matrices[block] = scale * _draw_matrix(width, width_after, generator)
        return matrices

    def _pass_back(self, error: Tensor, state: State) -> dict[str, Tensor]:
        rows = error
        rows_by_block = {}

        # Through all matrices, also where only some of their blocks are measured now.
        for block in reversed(self.matrices):
            rows = rows @ self.matrices[block].to(rows).T
            rows_by_block[block] = rows

        return {
            block: spread_rows(rows_by_block[block], hidden, f"block {block!r}")
            for block, hidden in state.hidden.items()
        }


def _draw_matrix(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, device="cpu")
