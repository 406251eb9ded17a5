"""Guards that put a model, or the random generators, back as they were."""

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from resonance_toolkit._base.facts import all_modules


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the body in eval mode, then restore the mode of every submodule.

    Examples:
        >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with evaluating(model):
        ...     print(model.training, model[0].training)
        False False
        >>> model.training, model[0].training, model[1].training
        (True, True, False)
    """
    # Not `model.train()`: the caller may keep some layers in eval on purpose.
    training_modes = {module: module.training for module in all_modules(model)}

    try:
        if any(training_modes.values()):
            model.eval()
        yield
    finally:
        # A module may do more than set a flag when its mode changes (such as merge weights).
        for module, was_training in training_modes.items():
            has_own_switch = type(module).train is not nn.Module.train
            if has_own_switch and module.training != was_training:
                module.train(was_training)

        # Such a switch reaches the modules inside, too: each gets its own mode back afterwards.
        for module, was_training in training_modes.items():
            if module.training != was_training:
                module.training = was_training


@contextmanager
def preserving(model: nn.Module, *, values: bool = True) -> Iterator[None]:
    """Run the body, which may change a model, then restore everything, bit for bit.

    Restored are parameters, buffers, gradients, `requires_grad`, modes and the global random state.
    Inside, every `.grad` is None, so that gradients computed there never mix with the user's. Hooks
    are not restored: register them through an `ExitStack`.

    Args:
        model: The model to protect.
        values: Also keep a copy of parameters and buffers, at the cost of their memory. Pass False
            if the body only differentiates.

    Examples:
        >>> layer = nn.Linear(2, 2)
        >>> before = layer.weight.clone()
        >>> with preserving(layer), torch.no_grad():
        ...     _ = layer.weight.fill_(0), layer.eval()
        >>> torch.equal(layer.weight, before), layer.training
        (True, True)
    """
    modules = all_modules(model)
    training_modes = {module: module.training for module in modules}

    # A scripted module keeps its tensors where nothing can take them away.
    registries = [
        (module, dict(module._parameters), dict(module._buffers))
        for module in modules
        if not isinstance(module, torch.jit.ScriptModule)
    ]

    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    gradient_flags = [parameter.requires_grad for parameter in parameters]

    # Aliases of the storages, in case the body gives a tensor another one.
    tensors = [*parameters, *model.buffers()]
    storages = [tensor.data for tensor in tensors] if values else []
    copies = [storage.clone() for storage in storages]

    with preserving_rng(tensor.device for tensor in tensors):
        try:
            for parameter in parameters:
                parameter.grad = None
            yield
        finally:
            for module, module_parameters, module_buffers in registries:
                module._parameters.update(module_parameters)
                module._buffers.update(module_buffers)

            # A gradient must fit the storage that comes back, so it goes first.
            for parameter in parameters:
                parameter.grad = None

            # Through `.data`: a graph the user still wants to differentiate sees no new version.
            for tensor, storage, copy in zip(tensors, storages, copies, strict=False):
                if tensor.dtype != storage.dtype or tensor.data_ptr() != storage.data_ptr():
                    tensor.data = storage

                # On an accelerator the question would wait for the device; the answer is not needed
                # there, but where several elements share their memory, which refuses to be written.
                is_written_unasked = storage.device.type != "cpu" and storage.is_contiguous()
                if is_written_unasked or not _same_bits(storage, copy):
                    storage.copy_(copy)

            for parameter, gradient, flag in zip(
                parameters, gradients, gradient_flags, strict=True
            ):
                parameter.requires_grad_(flag)
                parameter.grad = gradient

            for module, was_training in training_modes.items():
                module.training = was_training


@contextmanager
def preserving_rng(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Give torch (CPU and `devices`), numpy and `random` their states back after the body.

    Examples:
        >>> with preserving_rng():
        ...     inside = torch.rand(1)
        >>> torch.equal(inside, torch.rand(1))
        True
    """
    indices_by_type: dict[str, set[int]] = {"cpu": set()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            indices_by_type.setdefault(device.type, set()).add(device.index or 0)

    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002

    with ExitStack() as stack:
        for device_type, indices in indices_by_type.items():
            # `fork_rng` always covers the CPU; an accelerator needs its type named.
            settings = {} if device_type == "cpu" else {"device_type": device_type}
            stack.enter_context(torch.random.fork_rng(sorted(indices), **settings))

        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def seed_generators(seed: int, devices: Iterable[torch.device] = ()) -> None:
    """Seed torch's global generators of the CPU and of some devices.

    Not `torch.manual_seed`, which seeds every accelerator of the machine: a guard that gives back
    what was used would have to know them all. Call it inside `preserving_rng` of the same devices.

    Args:
        seed: As for `torch.manual_seed`; each generator then gives the numbers that it would give.
        devices: Whose generators are meant, beside the CPU's.

    Examples:
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


def _same_bits(a: Tensor, b: Tensor) -> bool:
    # Bytes, not values: NaN differs from itself, and -0.0 equals 0.0.
    return torch.equal(_bytes(a.detach()), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
