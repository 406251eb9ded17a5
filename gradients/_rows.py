"""What was recorded, one row per update, from the device to numpy.

A `Journal` collects the measurements of updates as they come, and leaves them on the device for a
while; `to_recorded_updates` brings them to the CPU, undoes their scale, and adds up by layer.
`to_state` and `from_state` turn rows into tensors, for checkpoints, and back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradients._recorders.inner_products import full_matrices
from gradients._recorders.protocol import Measurement
from resonance_toolkit import to_host

Array = NDArray[np.float64]

# Updates that wait on the device: reading a number makes an accelerator wait, and 32 of them make
# that rare, while what waits stays small (some kilobytes for each).
_KEPT_ON_DEVICE = 32


@dataclass
class RecordedUpdate:
    """One sampled update, by layer."""

    step: int
    loss: Array  # (objective,)
    dot: Array  # (layer, objective, other): over the parameters that both reach
    square: Array  # (layer, objective, other): squared norm of the first, over the same
    gradient_norm: float  # of the sum of all losses, over all parameters

    # (layer, objective): mean squared norm of the micro-batches, on the scale of the update's
    micro_square: Array | None = None
    n_micro_batches: int = 1


@dataclass(frozen=True)
class MeasuredUpdate:
    """One sampled update as it was measured, still on the device."""

    step: int
    losses: Tensor  # (objective,), without the scale
    scale: Tensor  # of the gradients
    measurement: Measurement


class Journal:
    """The updates so far, brought to the CPU many at a time.

    Args:
        owners: The layer of each item measured.
        n_layers: How many layers there are.
    """

    def __init__(self, owners: list[int], n_layers: int) -> None:
        self._owners = owners
        self._n_layers = n_layers
        self._pending_updates: list[MeasuredUpdate] = []
        self._recorded_updates: list[RecordedUpdate] = []

    def __len__(self) -> int:
        return len(self._recorded_updates) + len(self._pending_updates)

    def add(self, update: MeasuredUpdate) -> None:
        """Note one update."""
        self._pending_updates.append(update)
        if len(self._pending_updates) >= _KEPT_ON_DEVICE:
            self.rows()

    def rows(self) -> list[RecordedUpdate]:
        """Return all updates so far."""
        self._recorded_updates += to_recorded_updates(
            self._pending_updates, self._owners, self._n_layers
        )
        self._pending_updates.clear()
        return self._recorded_updates

    def replace(self, updates: list[RecordedUpdate]) -> None:
        """Put other updates in the place of all so far."""
        self._pending_updates.clear()
        self._recorded_updates = updates


def to_state(updates: Sequence[RecordedUpdate]) -> dict[str, Tensor]:
    """Stack rows into tensors `(row, ...)`; none at all if there are no rows."""
    if not updates:
        return {}

    columns = {
        "step": torch.tensor([update.step for update in updates]),
        "loss": torch.from_numpy(np.stack([update.loss for update in updates])),
        "dot": torch.from_numpy(np.stack([update.dot for update in updates])),
        "square": torch.from_numpy(np.stack([update.square for update in updates])),
        "gradient_norm": torch.tensor(
            [update.gradient_norm for update in updates], dtype=torch.float64
        ),
    }

    micro_square = stack_micro_squares(updates)
    if micro_square is not None:
        columns["micro_square"] = torch.from_numpy(micro_square)
        columns["n_micro_batches"] = torch.tensor([update.n_micro_batches for update in updates])
    return columns


def stack_micro_squares(updates: Sequence[RecordedUpdate]) -> Array | None:
    """Stack what is known of micro-batches, `(row, layer, objective)`; None if nothing is."""
    if all(update.micro_square is None for update in updates):
        return None

    # A training may have been resumed with another setting.
    unknown = np.full(updates[0].square.shape[:2], np.nan)
    squares = [update.micro_square for update in updates]
    return np.stack([unknown if square is None else square for square in squares])


def from_state(state: Mapping[str, Tensor]) -> list[RecordedUpdate]:
    """Undo `to_state`."""
    if not state:
        return []

    # Frameworks move the tensors of a checkpoint to the device of the model. A copy, since a
    # state may be loaded twice.
    columns = {name: column.detach().cpu().clone() for name, column in state.items()}
    has_noise = "micro_square" in columns
    return [
        RecordedUpdate(
            step=int(columns["step"][i]),
            loss=columns["loss"][i].numpy(),
            dot=columns["dot"][i].numpy(),
            square=columns["square"][i].numpy(),
            gradient_norm=float(columns["gradient_norm"][i]),
            micro_square=columns["micro_square"][i].numpy() if has_noise else None,
            n_micro_batches=int(columns["n_micro_batches"][i]) if has_noise else 1,
        )
        for i in range(len(columns["step"]))
    ]


def to_recorded_updates(
    updates: Sequence[MeasuredUpdate], owners: list[int], n_layers: int
) -> list[RecordedUpdate]:
    """Bring measurements to the CPU, undo their scales and add them up by layer."""
    # All at once, so that the device is waited for once.
    tensors = [
        tensor
        for update in updates
        for tensor in (update.losses, update.scale, _all_products(update.measurement))
    ]
    numbers = [tensor.double().numpy() for tensor in to_host(tensors)]
    return [
        _to_recorded_update(update, numbers[3 * i : 3 * i + 3], owners, n_layers)
        for i, update in enumerate(updates)
    ]


def _all_products(measurement: Measurement) -> Tensor:
    # Of the update, then of its micro-batches if they were measured.
    if measurement.micro_products is None:
        return measurement.products
    return torch.cat([measurement.products, measurement.micro_products])


def _to_recorded_update(
    update: MeasuredUpdate, numbers: list[Array], owners: list[int], n_layers: int
) -> RecordedUpdate:
    measurement = update.measurement
    losses, scale, scaled_products = numbers
    n_losses = len(losses)
    n_pairs = n_losses * (n_losses + 1) // 2
    all_products = scaled_products.reshape(-1, n_pairs) / scale**2
    products = all_products[: len(owners)]
    micro_products = all_products[len(owners) :]

    # A gradient that overflowed says nothing: the scaler will skip this update.
    is_finite = bool(np.isfinite(all_products).all())

    matrices = full_matrices(products, n_losses)
    squares = np.diagonal(matrices, axis1=1, axis2=2)
    reached = measurement.reached
    if measurement.zero_is_unreached:
        reached = reached & (squares != 0)

    # Per item, then per layer: only parameters that both losses reach count for the pair.
    both_reach = reached[:, :, None] & reached[:, None, :]
    is_shared = np.zeros((n_layers, n_losses, n_losses), dtype=bool)
    dot = np.zeros((n_layers, n_losses, n_losses))
    square = np.zeros((n_layers, n_losses, n_losses))
    np.logical_or.at(is_shared, owners, both_reach)
    np.add.at(dot, owners, np.where(both_reach, matrices, 0.0))
    np.add.at(square, owners, np.where(both_reach, squares[:, :, None], 0.0))

    # |sum of all gradients|^2 is the sum of all their inner products.
    gradient_norm = float("nan")
    if is_finite and bool(measurement.reached.any()):
        gradient_norm = float(np.sqrt(max(matrices.sum(), 0.0)))

    is_defined = is_shared if is_finite else np.zeros_like(is_shared)

    micro_square = None
    if measurement.micro_products is not None:
        micro_square = np.zeros((n_layers, n_losses))
        micro_matrices = full_matrices(micro_products, n_losses)
        micro_squares = np.diagonal(micro_matrices, axis1=1, axis2=2)
        np.add.at(micro_square, owners, np.where(reached, micro_squares, 0.0))

        # Each micro-batch brings one part in n of the update: by itself, it is n times that, and
        # the mean of n squares is n times their sum.
        micro_square *= measurement.n_micro_batches
        micro_square[~np.diagonal(is_defined, axis1=1, axis2=2)] = np.nan

    return RecordedUpdate(
        step=update.step,
        loss=losses,
        dot=np.where(is_defined, dot, np.nan),
        square=np.where(is_defined, square, np.nan),
        gradient_norm=gradient_norm,
        micro_square=micro_square,
        n_micro_batches=measurement.n_micro_batches,
    )
