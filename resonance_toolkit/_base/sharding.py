"""Whether `fully_shard` has been at a module or a tensor, asked without loading its machinery.

`resharding` leaves such a module as an optimizer must find it. Loading the machinery takes as long
as torch itself. Where nobody has loaded it yet, nothing can be sharded.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

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


@contextmanager
def resharding(root: nn.Module) -> Iterator[None]:
    """Let the body run the model, and leave its parameters split, as an optimizer must find them.

    After a pass without a backward pass some stay whole (the root's own, by default): the next pass
    would use them as they were before the optimizer's step.
    """
    sharded_modules = [module for module in root.modules() if is_fully_sharded(module)]
    for module in sharded_modules:
        module.reshard()

    try:
        yield
    finally:
        for module in sharded_modules:
            module.reshard()


def _is_instance(value: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)
