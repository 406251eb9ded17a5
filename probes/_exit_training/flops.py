from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker


class FlopCounter(FlopCounterMode):
    """Counts floating-point operations, and leaves modules and gradients alone.

    Torch's own also tracks modules, by hooks on the gradients of what they are given; a view of a
    parameter, such as an expanded class token, makes these fail under `no_grad`.
    """

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker = _Untracked()


class _Untracked(ModuleTracker):
    def __enter__(self) -> "_Untracked":
        self.parents = {"Global"}
        return self

    def __exit__(self, *_: object) -> None:
        pass
