"""The path from a layer's output to logits: modules of the model, with functions between them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
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
    # As DINOv2's classifier and the distilled transformers of images and sound have it.
    "first token and mean of the others": lambda x: torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=-1),
    "mean of the first two tokens": lambda x: (x[:, 0] + x[:, 1]) / 2,
}

# Right for texts without padding only, so that each pass has to be checked.
LAST_TOKEN = "last token"

# Made within `forward`, where they are not modules: DistilBERT's classifier has such a `relu`.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu (tanh)": partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
    "silu": F.silu,
    "hardswish": F.hardswish,
}

# Functions with a number, which follows the name: T5 scales what its head reads, Cohere the logits,
# and Gemma caps them softly.
TIMES = "times"
CAPPED_AT = "softly capped at"
_FUNCTIONS_OF_NUMBER: dict[str, Callable[[Tensor, float], Tensor]] = {
    TIMES: lambda x, factor: x * factor,
    CAPPED_AT: lambda x, cap: cap * torch.tanh(x / cap),
}

Step = tuple[str, str]  # what `function_between_modules` knows, then a module ("" for none)


def function_between_modules(name: str) -> Callable[[Tensor], Tensor]:
    """Return what a step does before its module, by name."""
    if name == LAST_TOKEN:
        return lambda x: x[:, -1]
    function = POOLING_BETWEEN_MODULES.get(name) or ACTIVATIONS.get(name)
    if function is not None:
        return function

    kind, _, number = name.rpartition(" ")
    function_of_number = _FUNCTIONS_OF_NUMBER[kind]
    return lambda x: function_of_number(x, float(number))


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

        with gathered(root, self.modules, with_root=has_user_code):
            x = hidden if self.norm is None else self.norm(hidden)
            for function_name, module_name in self.steps:
                x = function_between_modules(function_name)(x)
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
    """Tell whether a module of the model's has parameters; `""` is not a module."""
    return bool(module_name) and any(True for _ in root.get_submodule(module_name).parameters())
