"""Whether `fully_shard` has been at a module or a tensor, asked without loading its machinery.

Loading it takes as long as torch itself. Where nobody has loaded it yet, nothing can be sharded.
"""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_fully_sharded(module: Any) -> "TypeGuard[FSDPModule]":
    """Tell whether `fully_shard` was applied to this very module.

    Examples:
        >>> import torch
        >>> is_fully_sharded(torch.nn.Linear(1, 1))
        False
    """
    return _is_instance(module, "torch.distributed.fsdp", "FSDPModule")


def is_dtensor(tensor: Any) -> "TypeGuard[DTensor]":
    """Tell whether a tensor is spread over processes.

    Examples:
        >>> import torch
        >>> is_dtensor(torch.ones(1))
        False
    """
    return _is_instance(tensor, "torch.distributed.tensor", "DTensor")


def _is_instance(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)
