"""A counter of floating-point operations that any model can be run under."""

from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker


class FlopCounter(FlopCounterMode):
    """Counts floating-point operations, and leaves modules and gradients alone.

    Torch's own also tracks modules, by hooks on the gradients of what they are given; a view of a
    parameter, such as an expanded class token, makes these fail under `no_grad`.
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _NoModuleTracker()


class _NoModuleTracker(ModuleTracker):
    def __enter__(self) -> "_NoModuleTracker":
        # All operations are booked under this one name, which the counter expects to exist.
        self.parents = {"Global"}
        return self

    def __exit__(self, *_: object) -> None:
        pass
