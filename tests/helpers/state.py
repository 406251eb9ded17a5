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
    return {
        "values": {k: (id(t), t.data_ptr(), _bytes(t)) for k, t in _tensors(model)},
        "grads": {k: (id(p.grad), _bytes(p.grad)) for k, p in model.named_parameters()},
        "wanted": {k: p.requires_grad for k, p in model.named_parameters()},
        "modes": {k: m.training for k, m in model.named_modules()},
        "hooks": {k: [list(getattr(m, h)) for h in _HOOKS] for k, m in model.named_modules()},
        "attributes": {k: sorted(vars(m)) for k, m in model.named_modules()},
        "torch": _bytes(torch.get_rng_state()),
        "numpy": str(np.random.get_state()[1].tobytes()),  # noqa: NPY002
        "python": random.getstate(),
        "grad_mode": torch.is_grad_enabled(),
        "default_dtype": torch.get_default_dtype(),
    }


def _tensors(model: nn.Module):
    return [*model.named_parameters(), *model.named_buffers()]


def _bytes(tensor: torch.Tensor | None) -> bytes | None:
    if tensor is None:
        return None
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
