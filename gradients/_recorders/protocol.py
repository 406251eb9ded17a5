"""What every recorder can do, and what it hands over at the end of an update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor


@dataclass
class Measurement:
    """Inner products of one update, still scaled and on the device.

    An item is what is measured by itself: one parameter, or the output of one layer.
    """

    products: Tensor  # (item, pair): upper triangles
    reached: NDArray[np.bool_]  # (item, objective)
    zero_is_unreached: bool  # where unreached gradients arrive as zeros

    # Upper triangles of each micro-batch's own part of the gradient, summed over micro-batches.
    micro_products: Tensor | None = None
    n_micro_batches: int = 1  # of all processes


class Recorder(Protocol):
    """Reads the gradients of several losses while their sum is backpropagated.

    `arm` comes before each backward pass and `disarm` after it; `measure` ends an update, which
    may have had several; `reset` forgets one that went wrong. `gradients._update` draws them
    along the time.
    """

    layers: list[str]
    owners: list[int]  # the layer of each item measured
    sizes: list[int] | None  # parameters in each layer
    group: dist.ProcessGroup | None  # the processes that share the batch

    def arm(self, losses: Sequence[Tensor], factor: Tensor, *, whole_update: bool) -> None: ...
    def disarm(self) -> None: ...
    def measure(self) -> Measurement: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...
