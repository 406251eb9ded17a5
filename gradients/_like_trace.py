from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gradients._checks import Group


class LikeTrace(Protocol):
    """What the frameworks' callbacks need of a trace: `Trace` itself, or `resonance.Monitor`."""

    step: int
    scaler: torch.amp.GradScaler | None
    group: Group

    @property
    def checkpoint_name(self) -> str: ...
    def backward(self, *losses: Tensor, update: bool = True) -> None: ...
    def advance(self) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
