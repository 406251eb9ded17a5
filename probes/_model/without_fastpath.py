from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_fastpath() -> Iterator[None]:
    """Keep torch's attention from making nested tensors, as it does in eval mode only.

    Examples:
        >>> with without_fastpath():
        ...     torch.backends.mha.get_fastpath_enabled()
        False
    """
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)

    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)
