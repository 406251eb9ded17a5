from collections.abc import Sequence

import torch
from torch import Tensor

from resonance_toolkit._base.devices import widest_float


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Bring tensors to the CPU, all those of one accelerator in one piece.

    Each copy has the host wait for all that the device was asked to do before: one of them is as
    dear as a hundred numbers in one.

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
