from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from resonance_toolkit._base.facts import all_modules


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
    training_modes = {module: module.training for module in all_modules(model)}

    try:
        if any(training_modes.values()):
            model.eval()
        yield
    finally:
        # A module may do more than set a flag when its mode changes (merge weights, say).
        for module, was_training in training_modes.items():
            has_own_switch = type(module).train is not nn.Module.train
            if has_own_switch and module.training != was_training:
                module.train(was_training)

        # Such a switch reaches the modules inside, too: each gets its own mode back afterwards.
        for module, was_training in training_modes.items():
            if module.training != was_training:
                module.training = was_training
