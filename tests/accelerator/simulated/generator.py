"""The module `torch.sim`: how many devices there are, and their random generator."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

_generator = torch.Generator().manual_seed(0)


class Backend:
    """What torch asks the module of a device for."""

    # Without it, activation checkpointing would not keep the device's random state.
    _initialized = True

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        """Nothing to choose from."""

    def device(self, _device: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def manual_seed(self, seed: int) -> None:
        _generator.manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        _generator.manual_seed(int(seed))

    def get_rng_state(self, _device: Any = None) -> Tensor:
        return _generator.get_state()

    def set_rng_state(self, state: Tensor, _device: Any = None) -> None:
        _generator.set_state(state)


@contextmanager
def drawing_from_device() -> Iterator[None]:
    """Have the processor's kernels draw from the device's generator in the body."""
    state_of_cpu = torch.default_generator.get_state()
    torch.default_generator.set_state(_generator.get_state())
    try:
        yield
    finally:
        _generator.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(state_of_cpu)
