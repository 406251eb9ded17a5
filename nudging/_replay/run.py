from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def uncheckpointed(model: nn.Module) -> Iterator[None]:
    """Switch timm's activation checkpointing off: it would run blocks again, without our hooks."""
    flags = [vars(m) for m in model.modules() if vars(m).get("grad_checkpointing") is True]
    try:
        for flag in flags:
            flag["grad_checkpointing"] = False
        yield
    finally:
        for flag in flags:
            flag["grad_checkpointing"] = True
