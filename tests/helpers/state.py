"""Everything about a model and the process that a verb must leave as it was."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Bytes, identities and flags; two snapshots are equal only if nothing at all moved."""
    return _of_tensors(model) | _of_modules(model) | _of_process()


def _of_tensors(model: nn.Module) -> dict[str, Any]:
    parameters = list(model.named_parameters())
    tensors = [*parameters, *model.named_buffers()]
    return {
        "values": {name: (id(t), t.data_ptr(), _bytes(t)) for name, t in tensors},
        "grads": {name: (id(p.grad), _bytes(p.grad)) for name, p in parameters},
        "requires_grad": {name: p.requires_grad for name, p in parameters},
    }


def _of_modules(model: nn.Module) -> dict[str, Any]:
    modules = list(model.named_modules())
    return {
        "modes": {name: module.training for name, module in modules},
        "hooks": {name: [list(getattr(module, h)) for h in _HOOKS] for name, module in modules},
        "attributes": {name: sorted(vars(module)) for name, module in modules},
    }


def _of_process() -> dict[str, Any]:
    return {
        "torch": _bytes(torch.get_rng_state()),
        "accelerator": _bytes(_accelerator_state()),
        "numpy": str(np.random.get_state()[1].tobytes()),  # noqa: NPY002
        "python": random.getstate(),
        "grad_mode": torch.is_grad_enabled(),
        "default_dtype": torch.get_default_dtype(),
    }


def _accelerator_state() -> torch.Tensor | None:
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else torch.get_device_module(device).get_rng_state()


def _bytes(tensor: torch.Tensor | None) -> bytes | None:
    if tensor is None:
        return None

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
