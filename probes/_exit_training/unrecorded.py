from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def unrecorded(root: nn.Module, names: Iterable[str]) -> Iterator[None]:
    """Let the batch norms in some of a model's modules use a batch without noting it.

    Their running statistics are those of the model's own pass, on which its inference rests.
    """
    modules = (module for name in names for module in root.get_submodule(name).modules())
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
