from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from resonance_toolkit._base.all_modules import all_modules


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the body in eval mode, then give every submodule its own mode back.

    Examples:
        >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with evaluating(model):
        ...     print(model.training, model[0].training)
        False False
        >>> model.training, model[0].training, model[1].training
        (True, True, False)
    """
    # Not `model.train()`: the caller may keep some layers in eval on purpose.
    modes = {module: module.training for module in all_modules(model)}
    try:
        if any(modes.values()):
            model.eval()
        yield
    finally:
        for module, mode in modes.items():
            # A module may do more than set a flag when its mode changes (merge weights, say).
            if type(module).train is not nn.Module.train and module.training != mode:
                module.train(mode)
        for module, mode in modes.items():
            if module.training != mode:
                module.training = mode
