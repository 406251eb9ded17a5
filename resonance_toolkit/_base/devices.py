"""Devices: where a model is, what they can add up in, and how numbers come from them."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import torch
from torch import Tensor, nn

from resonance_toolkit._base.facts import all_modules


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
    # Not `parameters()` and `buffers()`, each of which would walk through all modules by itself.
    tensors = (
        tensor
        for module in all_modules(model)
        for tensor in chain(module._parameters.values(), module._buffers.values())
    )
    return {tensor.device for tensor in tensors if tensor is not None}


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


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Bring tensors to the CPU, all those of one accelerator in one piece.

    Each copy has the host wait for all that the device was asked to do before: one of them is as
    expensive as a hundred numbers in one.

    Args:
        tensors: On any devices, of any shapes and types.

    Returns:
        The same, detached and in the same order; those on the CPU are not copied.

    Examples:
        >>> to_host([torch.ones(2), torch.tensor(True)])
        [tensor([1., 1.]), tensor(True)]
    """
    on_host = [tensor.detach() for tensor in tensors]
    places_by_device: dict[torch.device, list[int]] = {}

    for place, tensor in enumerate(on_host):
        if tensor.device.type == "cpu":
            continue
        if _fits_in_float(tensor):
            places_by_device.setdefault(tensor.device, []).append(place)
        else:
            on_host[place] = tensor.cpu()

    for device, places in places_by_device.items():
        # Every one of them is exact in the widest type, and goes back to its own.
        parts = [on_host[place].to(widest_float(device)).reshape(-1) for place in places]
        message = torch.cat(parts).cpu()
        pieces = message.split([len(part) for part in parts])
        for place, piece in zip(places, pieces, strict=True):
            tensor = on_host[place]
            on_host[place] = piece.to(tensor.dtype).reshape(tensor.shape)
    return on_host


def _fits_in_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.dtype == torch.bool
