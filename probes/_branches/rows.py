"""From the features of a layer and the targets of a pass to rows: one feature vector, one target.

Targets of samples are met by pooled features, or by every position with its sample's target.
Targets of positions are met position by position; a feature map takes the targets nearest to its
positions.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from probes._branches.targets import Targets
from probes._model.pooling import Pool
from resonance_toolkit import IGNORED_TARGET


@dataclass(frozen=True)
class LayerFeatures:
    """What a pass has left of one layer: a tensor for each of its calls that counts.

    `calls` are `(sample, width)` or `(sample, ..., width)`, as `pool` keeps them. `counts (sample,
    position)` is False where a position is padding; None if nothing says so. `is_of_encoder`: its
    positions are not those of the model's output, which targets of positions are of.
    """

    name: str
    calls: list[Tensor]
    pool: Pool
    counts: Tensor | None
    is_of_encoder: bool = False

    @property
    def n_tokens(self) -> int | None:
        """How many tokens wait for the targets; None if the layer gives none, or does not wait."""
        is_sequence = self.calls[0].dim() == 3
        return self.calls[0].shape[1] if self.pool.waits_for_targets and is_sequence else None

    def check(self, targets: Targets) -> None:
        """Refuse targets that do not fit.

        Raises:
            RuntimeError: If the layer has other samples.
            ValueError: If its positions are not those of the targets.
        """
        n_samples = len(targets.values)
        if any(len(features) != n_samples for features in self.calls):
            lengths = ", ".join(str(len(features)) for features in self.calls)
            raise RuntimeError(f"layer {self.name!r} gave {lengths} rows for {n_samples} samples")

        if targets.kind == "positions":
            if self.is_of_encoder and self.pool.custom is None:
                raise ValueError(_not_of_the_output(self.name))
            for features in self.calls:
                target_grid = targets.values.shape[1:]
                grid = _grid_of(features, target_grid, self.pool)
                _check_grid(self.name, grid, tuple(target_grid), self.pool)

    def rows(self, features: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Make features `(row, width)` of one call, and a target for each row, on their device.

        Args:
            features: One of `calls`, in whatever precision.
            targets: Some that fit.
        """
        if targets.kind == "positions":
            grid = _grid_of(features, targets.values.shape[1:], self.pool)
            nearest = _nearest_targets(targets.values.to(features.device), torch.Size(grid))
            return _select(features.flatten(0, -2), nearest.flatten(), nearest != IGNORED_TARGET)

        values = targets.values.to(features.device)
        row_targets = values if targets.kind == "classes" else values.to(features.dtype)

        pooled_features = self.pool.reduce_positions(features, self.counts)
        if pooled_features.dim() == 2:
            return pooled_features, row_targets

        n_places = pooled_features.shape[1:-1].numel()
        rows = pooled_features.flatten(0, -2)
        row_targets = row_targets.repeat_interleave(n_places, 0)
        if self.counts is None:
            return rows, row_targets
        return _select(rows, row_targets, self.counts)


def _not_of_the_output(layer: str) -> str:
    return (
        f"`y` at layer {layer!r}: targets of positions are of what the model writes, this layer "
        "runs on what it reads; choose layers of its decoder (those chosen where `layers` is left "
        "out), or, if the targets are of the encoder's positions, a callable `pool` such as "
        "lambda x: x"
    )


def _check_grid(
    layer: str, grid: tuple[int, ...], target_grid: tuple[int, ...], pool: Pool
) -> None:
    start = f"`y` at layer {layer!r}: targets of {_describe(target_grid)} need a layer"
    if not grid:
        cure = "choose another"
        if pool.kind in ("mean", "cls", "flatten"):
            cure = "attach with pool='spatial', which keeps positions"
        raise ValueError(f"{start} with positions, but this one is pooled to a vector; {cure}")

    if len(grid) != len(target_grid):
        raise ValueError(
            f"{start} with as many axes, but this one has {_describe(grid)}; choose another, or a "
            "callable `pool` that returns (sample, *axes of the targets, feature)"
        )

    # Tokens have no order in space by which a nearest one could be found.
    if grid != target_grid and not _is_map(grid, pool):
        raise ValueError(
            f"{start} with a token for each, but this one has {_describe(grid)} (a class token, "
            "windows?); choose another, or a callable `pool` that leaves out tokens without a "
            "target, such as lambda x: x[:, 1:]"
        )


def _grid_of(features: Tensor, target_grid: torch.Size, pool: Pool) -> tuple[int, ...]:
    """Return the axes of positions of captured features, tokens of a map unfolded.

    Segmenters built of attention (SegFormer) flatten their maps row by row: tokens that are as many
    as a map of the targets' own proportions has are such a map.
    """
    grid = tuple(features.shape[1:-1])
    is_sequence = len(grid) == 1 and pool.channel != 1 and pool.kind in ("mean", "spatial")
    if not is_sequence or len(target_grid) != 2:
        return grid

    height, width = target_grid
    divisor = math.gcd(height, width)
    rows, columns = height // divisor, width // divisor
    factor = math.isqrt(grid[0] // (rows * columns))
    is_proportional = factor > 0 and factor**2 * rows * columns == grid[0]
    return (factor * rows, factor * columns) if is_proportional else grid


def _is_map(grid: tuple[int, ...], pool: Pool) -> bool:
    """Tell maps, whose positions lie in space, from tokens: several axes, or channels first."""
    return len(grid) > 1 or pool.channel == 1


def _nearest_targets(values: Tensor, grid: torch.Size) -> Tensor:
    """Give each position of a grid the nearest target, as `F.interpolate(mode="nearest")` does."""
    nearest = values
    for axis, size in enumerate(grid, start=1):
        if nearest.shape[axis] != size:
            # Indices are resized, not targets: torch resizes floating numbers only.
            indices = torch.arange(nearest.shape[axis], device=nearest.device, dtype=torch.float32)
            nearest_indices = F.interpolate(indices[None, None], size=size, mode="nearest")[0, 0]
            nearest = nearest.index_select(axis, nearest_indices.long())
    return nearest


def _select(rows: Tensor, row_targets: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    # Rows that do not count are dropped, not weighted: at a large vocabulary they would cost as
    # much as the others. On an accelerator this waits for the device.
    indices_of_rows = counts.to(rows.device).flatten().nonzero()[:, 0]
    if len(indices_of_rows) == len(rows):
        return rows, row_targets
    return rows.index_select(0, indices_of_rows), row_targets.index_select(0, indices_of_rows)


def _describe(grid: tuple[int, ...]) -> str:
    return " x ".join(map(str, grid)) + " positions"
