"""On which devices a model is, and on which there could be one."""

from functools import lru_cache
from itertools import chain

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Where a model's first parameter (or buffer) is; the CPU if it has none.

    Examples:
        >>> device_of(nn.Linear(1, 1))
        device(type='cpu')
    """
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def devices_of(model: nn.Module) -> set[torch.device]:
    """Every device that a model has parameters or buffers on.

    Examples:
        >>> devices_of(nn.Linear(1, 1))
        {device(type='cpu')}
    """
    return {tensor.device for tensor in chain(model.parameters(), model.buffers())}


def all_accelerators() -> list[torch.device]:
    """Every accelerator of this machine, of the kind that torch would choose."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return []

    # Its own count, since torch's general one may start a device, after which no process can fork.
    count: int = torch.get_device_module(accelerator).device_count()
    return [torch.device(accelerator.type, index) for index in range(count)]


@lru_cache
def widest_float(device: torch.device) -> torch.dtype:
    """The type to add up in: float64, or float32 on a device that has no better one.

    Examples:
        >>> widest_float(torch.device("cpu"))
        torch.float64
    """
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError):  # Apple's
        return torch.float32
    return torch.float64
