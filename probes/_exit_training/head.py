"""The path from a layer's output to logits: modules of the model, with pooling between them."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from probes._model.distributed import gathered
from probes._model.pooling import Pool
from resonance_toolkit import name_of

# What models do between modules: nothing, or one of these ways to pool positions. Five tokens are
# a class token and four registers, as DINOv2 has them.
POOLING_BETWEEN_MODULES: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "first token": lambda x: x[:, 0],
    "mean": lambda x: x.mean(1),
    "mean without first token": lambda x: x[:, 1:].mean(1),
    "mean without five tokens": lambda x: x[:, 5:].mean(1),
    "mean of a map": lambda x: x.mean((-2, -1)),
    "mean of a map, channels last": lambda x: x.mean((1, 2)),
    "flatten": lambda x: x.flatten(1),
}

Step = tuple[str, str]  # a name of POOLING_BETWEEN_MODULES, then of a module ("" for none)


@dataclass(frozen=True)
class Head:
    """A path from a layer's output to logits.

    The model's modules are known by name, so that a copy of the exits serves a copy of the model.
    """

    steps: tuple[Step, ...]
    norm: Callable[[Tensor], Tensor] | None = None  # the user's, before the steps
    custom: Callable[[Tensor], Tensor] | None = None  # the user's or a `Pool`, after them

    def __call__(self, root: nn.Module, hidden: Tensor) -> Tensor:
        """Return logits, or features where the last module is left out."""
        # A function of the user's may use any parameter of the model's, a `Pool` uses none.
        functions = [function for function in (self.norm, self.custom) if function is not None]
        has_user_code = any(not isinstance(function, Pool) for function in functions)

        with gathered(root, self.modules, own=has_user_code):
            x = hidden if self.norm is None else self.norm(hidden)
            for pooling, module_name in self.steps:
                x = POOLING_BETWEEN_MODULES[pooling](x)
                if module_name:
                    x = root.get_submodule(module_name)(x)
            return x if self.custom is None else self.custom(x)

    @property
    def modules(self) -> list[str]:
        """Names of the model's modules on the path."""
        return [module_name for _, module_name in self.steps if module_name]

    def without_last_module(self) -> "Head":
        """Return the path up to the last module, which makes the logits."""
        last = max(index for index, (_, module_name) in enumerate(self.steps) if module_name)
        pooling_before = self.steps[last][0]
        return Head((*self.steps[:last], (pooling_before, "")), self.norm)

    def without_norm(self, root: nn.Module, norm: Callable[[Tensor], Tensor] | None) -> "Head":
        """Return the same pooling and last module, with `norm` for what lies before.

        Modules without parameters (dropout, activations) stay where they are.
        """
        last_module = self.modules[-1]
        steps = []
        for pooling, module_name in self.steps:
            is_norm = module_name != last_module and has_parameters(root, module_name)
            steps.append((pooling, "" if is_norm else module_name))
        return Head(tuple(steps), norm)

    def __str__(self) -> str:
        words = [word for step in self.steps for word in step if word]
        if self.norm is not None:
            words.insert(0, name_of(self.norm))
        if self.custom is not None:
            words.append(name_of(self.custom))
        return " > ".join(words) or "as it is"


@dataclass(frozen=True)
class ExitPoint:
    """An exit: what its layer yields per sample, and how that becomes logits (or features)."""

    shape: tuple[int, ...]
    head: Head


def has_parameters(root: nn.Module, module_name: str) -> bool:
    """Tell whether a module of the model's has parameters; `""` is no module."""
    return bool(module_name) and any(True for _ in root.get_submodule(module_name).parameters())
