"""Register the device with torch: once in a process, for good."""

import importlib
from functools import reduce
from typing import Any

import torch

from tests.accelerator.simulated.generator import Backend
from tests.accelerator.simulated.kernel import Kernel
from tests.accelerator.simulated.memory import NAME
from tests.accelerator.simulated.modules import patch_modules, patch_storages
from tests.accelerator.simulated.special import special_kernels
from tests.accelerator.simulated.waits import note_wait

# Private parts of torch that a device written in Python needs.
_NEEDED_NAMES = (
    "torch._C._acc.create_empty_tensor",
    "torch._C._construct_storage_from_data_pointer",
    "torch._C._dispatch_get_registrations_for_dispatch_key",
    "torch._C._dispatch_has_computed_kernel_for_dispatch_key",
    "torch._C._dispatch_has_kernel_for_dispatch_key",
    "torch._C._swap_tensor_impl",
    "torch._C._AutoDispatchBelowAutograd",
    "torch._ops.OpOverload.redispatch",
    "torch.library.fallthrough_kernel",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
)

# Registrations end when the libraries that made them are collected.
_libraries: list[Any] = []


def missing_names() -> list[str]:
    """What this version of torch lacks, of all that the simulation needs."""
    importlib.import_module("torch.utils.backend_registration")
    return [name for name in _NEEDED_NAMES if not _exists(name)]


def install() -> None:
    """Make `torch.device("sim")` work."""
    if _libraries:
        return

    setup = importlib.import_module("torch.utils.backend_registration")
    setup._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    _libraries.extend([_register_operators(), _register_fallbacks()])
    patch_storages()
    patch_modules()

    # Of a device written in Python, torch does not ask who is to be waited for.
    torch.accelerator.synchronize = lambda device=None: note_wait("everything")


def _register_operators() -> Any:
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    special = special_kernels()
    for name, kernel in special.items():
        library.impl(name, kernel)

    # What CUDA has, and no more: torch knows that without a GPU, but not in a build for CPUs alone.
    source = "CUDA" if _knows_cuda() else "CPU"
    for full_name in torch._C._dispatch_get_registrations_for_dispatch_key(source):
        namespace, _, name = full_name.partition("::")
        runs_on_cpu = torch._C._dispatch_has_computed_kernel_for_dispatch_key(full_name, "CPU")
        if namespace == "aten" and name not in special and runs_on_cpu:
            base, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.aten, base), overload or "default")
            library.impl(name, Kernel(operator).__call__)
    return library


def _register_fallbacks() -> Any:
    library = torch.library.Library("_", "IMPL")
    library.fallback(_run_or_refuse, "PrivateUse1")
    library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    return library


def _run_or_refuse(operator: Any, *arguments: Any, **options: Any) -> Any:
    if operator.namespace == "aten" and _knows_cuda():
        raise NotImplementedError(f"{operator} is not there on accelerators: CUDA has none either")
    return Kernel(operator)(*arguments, **options)


def _knows_cuda() -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "CUDA")


def _exists(name: str) -> bool:
    try:
        reduce(getattr, name.split(".")[1:], torch)
    except AttributeError:
        return False
    return True
