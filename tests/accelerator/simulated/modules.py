"""Storages and modules that change the device, as they would with a device known to torch in C++.

Only C++ can register an allocator. So storages are copied here; and since torch refuses
`parameter.data = ...` between the CPU and a device like ours, `model.to` would make new parameters,
where `model.to("cuda")` keeps the objects that an optimizer may hold already.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tests.accelerator.simulated.memory import NAME, adopt


def patch_storages() -> None:
    """Teach storages to be copied on the device, to it and from it."""
    kind: Any = torch.UntypedStorage
    clone_elsewhere, copy_to_cpu, copy_elsewhere = kind.clone, kind.cpu, kind.to

    def clone(storage: Any) -> Any:
        host = getattr(storage, "host_storage", None)
        return clone_elsewhere(storage) if host is None else adopt(host.clone())

    def cpu(storage: Any) -> Any:
        host = getattr(storage, "host_storage", None)
        return copy_to_cpu(storage) if host is None else host.clone()

    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if torch.device(device).type == NAME and storage.device.type != NAME:
            return adopt(storage.clone())
        return copy_elsewhere(storage, device=device, non_blocking=non_blocking)

    kind.clone, kind.cpu, kind.to = clone, cpu, to


def patch_modules() -> None:
    """Have `Module.to` keep its parameter objects when it crosses over."""
    apply_to_tensors = nn.Module._apply

    def apply(module: nn.Module, change: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if recurse:
            for child in module.children():
                child._apply(change)

        guard: Any = _swapping_contents() if _crosses_over(module, change) else nullcontext()
        with guard:
            return apply_to_tensors(module, change, recurse=False)

    nn.Module._apply = apply  # type: ignore[method-assign]


def _crosses_over(module: nn.Module, change: Callable[[Tensor], Tensor]) -> bool:
    parameter = next((p for p in module._parameters.values() if p is not None), None)
    if parameter is None or torch.nn.parameter.is_lazy(parameter):
        return False

    with torch.no_grad():
        after = change(parameter.new_empty(0)).device.type
    before = parameter.device.type
    return before != after and NAME in (before, after)


@contextmanager
def _swapping_contents() -> Iterator[None]:
    flags: Any = torch.__future__
    was_on = flags.get_swap_module_params_on_conversion()
    swap_tensors = torch.utils.swap_tensors
    try:
        flags.set_swap_module_params_on_conversion(True)
        # Torch's own swap refuses tensors with weak references to them, which optimizers may hold.
        torch.utils.swap_tensors = torch._C._swap_tensor_impl
        yield
    finally:
        torch.utils.swap_tensors = swap_tensors
        flags.set_swap_module_params_on_conversion(was_on)
