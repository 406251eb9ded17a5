import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def preserving(model: nn.Module, *, values: bool = True) -> Iterator[None]:
    """Let the body do what it likes to a model, then put everything back, bit for bit.

    Restored: parameters, buffers, gradients, `requires_grad`, modes and the global random state.
    Inside, every `.grad` is None, so that gradients made there never mix with the user's. Hooks
    are not touched: register them through an `ExitStack`.

    Args:
        model: The model to protect.
        values: Also keep a copy of parameters and buffers (costs their memory). Pass False where
            the body only differentiates.

    Examples:
        >>> layer = nn.Linear(2, 2)
        >>> before = layer.weight.clone()
        >>> with preserving(layer), torch.no_grad():
        ...     _ = layer.weight.fill_(0), layer.eval()
        >>> torch.equal(layer.weight, before), layer.training
        (True, True)
    """
    # A scripted module keeps its tensors where nothing can take them away.
    plain = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    owners = [(m, dict(m._parameters), dict(m._buffers)) for m in plain]
    tensors = [*model.parameters(), *model.buffers()]
    parameters = list(model.parameters())
    grads = [p.grad for p in parameters]
    wanted = [p.requires_grad for p in parameters]
    modes = {module: module.training for module in model.modules()}
    # Aliases of the storages, in case the body gives a tensor another one.
    storages = [t.data for t in tensors] if values else []
    copies = [t.clone() for t in storages]
    with preserving_rng(t.device for t in tensors):
        try:
            for p in parameters:
                p.grad = None
            yield
        finally:
            for module, own_parameters, own_buffers in owners:
                module._parameters.update(own_parameters)
                module._buffers.update(own_buffers)
            for p in parameters:
                p.grad = None  # it must fit the storage that comes back
            # Through `.data`: a graph the user still wants to differentiate sees no new version.
            for tensor, storage, copy in zip(tensors, storages, copies, strict=False):
                if tensor.dtype != storage.dtype or tensor.data_ptr() != storage.data_ptr():
                    tensor.data = storage
                if not _same_bits(storage, copy):
                    storage.copy_(copy)
            for p, grad, want in zip(parameters, grads, wanted, strict=True):
                p.requires_grad_(want)
                p.grad = grad
            for module, mode in modes.items():
                module.training = mode


@contextmanager
def preserving_rng(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Give torch (CPU and `devices`), numpy and `random` their states back after the body.

    Examples:
        >>> with preserving_rng():
        ...     inside = torch.rand(1)
        >>> torch.equal(inside, torch.rand(1))
        True
    """
    by_type: dict[str, set[int]] = {"cpu": set()}
    for device in devices:
        if device.type not in ("cpu", "meta"):
            by_type.setdefault(device.type, set()).add(device.index or 0)
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    with ExitStack() as stack:
        for kind, indices in by_type.items():
            # `fork_rng` always covers the CPU; an accelerator needs its type named.
            extra = {} if kind == "cpu" else {"device_type": kind}
            stack.enter_context(torch.random.fork_rng(sorted(indices), **extra))
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _same_bits(a: Tensor, b: Tensor) -> bool:
    # Bytes, not values: NaN differs from itself, and -0.0 equals 0.0.
    return torch.equal(_bytes(a.detach()), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
