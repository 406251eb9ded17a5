from torch import Tensor

from gradients._recorders.protocol import Measurement
from gradients._rows import Row, make_row

_KEPT_ON_DEVICE = 32  # updates: reading a number makes an accelerator wait


class Journal:
    """What was measured in each update, brought to the CPU many updates at a time."""

    def __init__(self, owners: list[int], n_layers: int) -> None:
        self._owners, self._n_layers = owners, n_layers
        self._pending: list[tuple[int, Tensor, Tensor, Measurement]] = []
        self._rows: list[Row] = []

    def add(self, step: int, losses: Tensor, scale: Tensor, measured: Measurement) -> None:
        """Note one update."""
        self._pending.append((step, losses, scale, measured))
        if len(self._pending) >= _KEPT_ON_DEVICE:
            self.rows()

    def rows(self) -> list[Row]:
        """All updates so far."""
        for step, losses, scale, measured in self._pending:
            row = make_row(step, losses, scale, measured, self._owners, self._n_layers)
            self._rows.append(row)
        self._pending.clear()
        return self._rows
