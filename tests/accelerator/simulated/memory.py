"""The same bytes on both sides: CPU views of sim tensors, and sim tensors made of CPU ones."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

NAME = "sim"
DEVICE = torch.device("privateuseone", 0)  # called `sim:0` once it is installed

_CPU_KERNELS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_has_float64 = [True]


@contextmanager
def without_float64() -> Iterator[None]:
    """Be a device without double precision, such as Apple's, in the body."""
    _has_float64[0] = False
    try:
        yield
    finally:
        _has_float64[0] = True


def is_on_device(value: Any) -> bool:
    """Tell whether something is a tensor on the simulated device."""
    return isinstance(value, Tensor) and value.device.type == NAME


def host_storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """The processor's storage behind a tensor; None if torch made an empty one by itself."""
    # Kept by the storage's Python object, which lives as long as the storage in C++ does. Not by
    # the tensor's: autograd makes tensors that no Python object survives.
    storage: torch.UntypedStorage | None
    storage = getattr(tensor.untyped_storage(), "host_storage", None)
    return storage


def host_view(tensor: Tensor) -> Tensor:
    """A CPU tensor with the same bytes, sizes and strides."""
    view = torch.empty(0, dtype=tensor.dtype, device="cpu")
    storage = host_storage(tensor)
    if storage is None:
        return view.new_empty(tensor.shape)
    return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def adopt(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A sim storage with the bytes of a CPU one."""
    make: Any = torch._C._construct_storage_from_data_pointer
    adopted = make(storage.data_ptr(), DEVICE, storage.nbytes())
    adopted.host_storage = storage
    return adopted  # type: ignore[no-any-return]


def point_to(tensor: Tensor, storage: torch.UntypedStorage, layout: Tensor) -> Tensor:
    """Have a sim tensor be a view of a sim storage, laid out like another tensor."""
    return set_storage(tensor, storage, layout.storage_offset(), layout.shape, layout.stride())


def set_storage(tensor: Tensor, storage: Any, offset: int, size: Any, stride: Any = ()) -> Tensor:
    """The CPU's `set_`, which looks at no device."""
    set_: Any = torch.ops.aten.set_.source_Storage_storage_offset
    return set_.redispatch(_CPU_KERNELS, tensor, storage, offset, size, stride)  # type: ignore[no-any-return]


def from_host(tensor: Tensor, base: Tensor | None = None) -> Tensor:
    """A sim tensor with the bytes of a CPU one; a view of the sim tensor `base`, if given."""
    if tensor.dtype == torch.float64 and not _has_float64[0]:
        raise TypeError("this device has no float64")

    # In inference mode, a view of a normal tensor is a normal one.
    mode: Any = nullcontext()
    if base is not None and torch.is_inference_mode_enabled():
        mode = torch.inference_mode(base.is_inference())

    storage = adopt(tensor.untyped_storage()) if base is None else base.untyped_storage()
    with mode:
        empty = torch._C._acc.create_empty_tensor([0], tensor.dtype)
        return point_to(empty, storage, tensor)
