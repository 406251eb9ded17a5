from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch


def seed_generators(seed: int, devices: Iterable[torch.device] = ()) -> None:
    """Seed torch's global generators of the CPU and of some devices.

    Not `torch.manual_seed`, which seeds every accelerator of the machine: a guard that gives back
    what was used would have to know them all. Call it inside `preserving_rng` of the same devices.

    Args:
        seed: As for `torch.manual_seed`; each generator then gives the numbers that it would give.
        devices: Whose generators are meant, beside the CPU's.

    Examples:
        >>> from resonance_toolkit import preserving_rng
        >>> with preserving_rng():
        ...     seed_generators(0)
        ...     torch.rand(2)
        tensor([0.4963, 0.7682])
    """
    torch.default_generator.manual_seed(seed)

    for device in devices:
        if device.type in ("cpu", "meta"):
            continue

        # Where there can be several devices of a kind, its module seeds the current one.
        module: Any = torch.get_device_module(device)
        has_several = hasattr(module, "device")
        with module.device(device) if has_several else nullcontext():
            module.manual_seed(seed)
