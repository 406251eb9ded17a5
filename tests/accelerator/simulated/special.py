"""Operators that the one general kernel cannot be: by name, as torch's library takes them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.accelerator.simulated.kernel import Kernel
from tests.accelerator.simulated.memory import (
    from_host,
    host_view,
    is_on_device,
    point_to,
    set_storage,
)
from tests.accelerator.simulated.waits import note_wait

_aten = torch.ops.aten


def special_kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the name of the operator and its overload."""
    convolution = Kernel(_aten.convolution.default)
    return {
        "copy_": _copy,
        "_copy_from": lambda source, target, non_blocking=False: _copy(target, source),
        "_local_scalar_dense": _read_number,
        "_efficientzerotensor": _make_zeros,
        "set_.source_Storage_storage_offset": set_storage,
        "set_.source_Storage": _set_whole_storage,
        "set_.source_Tensor": lambda tensor, source: point_to(
            tensor, source.untyped_storage(), source
        ),
        # Where torch sends the convolutions of devices that it does not know.
        "convolution_overrideable": convolution.__call__,
        "convolution_backward_overrideable": _convolution_backward,
    }


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    is_to_device = is_on_device(target)
    if is_to_device != is_on_device(source) and target.numel():
        # Also if it is not to block: memory that is not pinned is copied at once.
        note_wait("to_device" if is_to_device else "to_host")

    host_target = host_view(target) if is_to_device else target
    host_source = host_view(source) if is_on_device(source) else source
    with torch._C._AutoDispatchBelowAutograd():
        host_target.copy_(host_source)
    return target


def _read_number(tensor: Tensor) -> Any:
    note_wait("number")
    return host_view(tensor).item()


def _make_zeros(size: Any, *, dtype: torch.dtype | None = None, **_options: Any) -> Tensor:
    return from_host(torch.zeros(size, dtype=dtype or torch.get_default_dtype(), device="cpu"))


def _set_whole_storage(tensor: Tensor, storage: Any) -> Tensor:
    return set_storage(tensor, storage, 0, [storage.nbytes() // tensor.element_size()], [1])


def _convolution_backward(
    gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    wanted: list[bool],
) -> Any:
    n_outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    return Kernel(_aten.convolution_backward.default)(
        gradient,
        inputs,
        weight,
        [n_outputs] if wanted[2] else None,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        wanted,
    )
