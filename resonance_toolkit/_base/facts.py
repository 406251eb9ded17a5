"""Small facts about models, batches and callables that every instrument must agree on."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit._base.sharding import is_dtensor, is_fully_sharded

# How timm, torchvision, transformers and the common tutorials call the parameter of a class token
# (the last part of its dotted name).
CLASS_TOKEN_NAMES = frozenset(
    {"cls_token", "class_token", "class_embedding", "cls_embedding", "cls_embed", "cls"}
)


def all_modules(model: nn.Module) -> list[nn.Module]:
    """`list(model.modules())` in a third of the time: no generators inside one another.

    Examples:
        >>> model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Identity())
        >>> all_modules(model) == list(model.modules())
        True
    """
    visited: dict[nn.Module, None] = {}
    pending = [model]

    # A stack instead of a recursive closure, which would keep the model alive in a cycle.
    while pending:
        module = pending.pop()
        if module in visited:
            continue
        visited[module] = None

        # Most modules are leaves; lists, since a generator would take twice as long.
        if children := module._modules:
            pending += [child for child in reversed(children.values()) if child is not None]

    return list(visited)


def is_compiled(module: nn.Module) -> bool:
    """Tell whether calling a module runs compiled code, in any of torch's three ways.

    Of the module itself, not of those inside it: ask for each of `model.modules()`.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> is_compiled(layer), is_compiled(torch.compile(layer))
        (False, True)
        >>> layer.compile()
        >>> is_compiled(layer)
        True
    """
    # `torch.compile(module)` wraps it; told by name, since importing the class loads dynamo.
    is_wrapper = any(base.__name__ == "OptimizedModule" for base in type(module).__mro__)

    # `module.compile()` works in place.
    is_compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None

    # `module.forward = torch.compile(module.forward)` replaces one method.
    has_compiled_forward = hasattr(module.forward, "_torchdynamo_orig_callable")

    return is_wrapper or is_compiled_in_place or has_compiled_forward


def is_sharded(model: nn.Module) -> bool:
    """Tell whether parameters are split over processes: by `fully_shard`, or as DTensors.

    Examples:
        >>> is_sharded(nn.Linear(1, 1))
        False
    """
    # Between a forward and its backward pass `fully_shard` holds whole parameters, so that the
    # modules tell what the parameters do not.
    return any(
        is_fully_sharded(module) or any(map(is_dtensor, module._parameters.values()))
        for module in all_modules(model)
    )


def floating_dtype_of(model: nn.Module) -> torch.dtype | None:
    """The dtype of a model's first floating-point parameter; None if it has none.

    Examples:
        >>> floating_dtype_of(nn.Linear(1, 1).half())
        torch.float16
    """
    parameters = model.parameters()
    return next((p.dtype for p in parameters if p.is_floating_point()), None)


def has_class_token(model: nn.Module) -> bool:
    """Tell whether a model owns the parameter of a class token, by its name.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> layer.cls_token = nn.Parameter(layer.weight)
        >>> has_class_token(layer), has_class_token(nn.Linear(1, 1))
        (True, False)
    """
    names = (name.rpartition(".")[2] for name, _ in model.named_parameters())
    return any(name in CLASS_TOKEN_NAMES for name in names)


def first_tensor(nest: Any) -> Tensor | None:
    """Return the first tensor in nested tuples, lists and dicts; None if there is none.

    Examples:
        >>> first_tensor((None, {"hidden": torch.ones(2)}))
        tensor([1., 1.])
    """
    if isinstance(nest, Tensor):
        return nest

    # By hand: torch's pytree takes a mapping that is no `dict`, as a tokenizer gives, for a leaf.
    # In plain words, since the compiler of torch 2.7 knows neither unions of types nor `next`.
    if not isinstance(nest, (Mapping, list, tuple)):
        return None
    for item in nest.values() if isinstance(nest, Mapping) else nest:
        tensor = first_tensor(item)
        if tensor is not None:
            return tensor
    return None


def sample_tensor(nest: Any, n_samples: int) -> Tensor | None:
    """Return the first tensor of a layer's output, or else the first item with the samples first.

    A block may return something beside what has the samples first, such as the tokens of all its
    patches. It is looked for only where the first tensor cannot hold the samples in another axis.

    Examples:
        >>> pixels, patches = torch.ones(8, 3), torch.ones(2, 4)
        >>> sample_tensor((pixels, patches), 2).shape
        torch.Size([2, 4])
    """
    first = first_tensor(nest)
    if first is None or not isinstance(nest, list | tuple) or not first.dim():
        return first

    # Time first, as recurrent layers have it, is for the caller to refuse.
    is_divided = n_samples > 0 and len(first) % n_samples == 0
    has_samples_second = first.dim() > 1 and first.shape[1] == n_samples
    if len(first) == n_samples or not is_divided or (has_samples_second and n_samples == 1):
        return first

    def has_samples_first(item: Any) -> bool:
        if not isinstance(item, Tensor) or item.dim() < 2 or len(item) != n_samples:
            return False

        # The last state of a recurrent layer, (layer, sample, feature), may have as many layers.
        return not (has_samples_second and item.shape[1] == n_samples)

    return next((item for item in nest if has_samples_first(item)), first)


def count_samples(nest: Any) -> int:
    """Count the samples of a batch: the length of the first tensor in it.

    Raises:
        ValueError: If there is no tensor with an axis.

    Examples:
        >>> count_samples({"ids": torch.ones(3, 7), "mask": torch.ones(3, 7)})
        3
    """
    tensor = first_tensor(nest)
    if tensor is None or not tensor.dim():
        raise ValueError(f"`data`: expected tensors with samples first, got {type(nest).__name__}")
    return len(tensor)


def name_of(thing: Any) -> str:
    """Say what a callable or an object is called: its own name, or that of its class.

    Examples:
        >>> from torch.nn import functional as F
        >>> name_of(partial(F.cross_entropy, reduction="none")), name_of(nn.MSELoss())
        ('cross_entropy', 'MSELoss')
    """
    while isinstance(thing, partial):
        thing = thing.func
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    return str(name or type(thing).__qualname__)


def count_arguments(function: Callable[..., Any]) -> int | None:
    """Count the arguments that a callable must be given by position.

    By it losses are told apart: `(outputs, targets)` has two, `(model, inputs, targets)` three.

    Returns:
        None if nobody can tell: of a builtin, or a function that takes any number.

    Examples:
        >>> count_arguments(nn.MSELoss()), count_arguments(lambda model, x, y=None: 0)
        (2, 2)
        >>> count_arguments(lambda *args: 0) is None
        True
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return None

    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    n_required = sum(p.kind in positional and p.default is p.empty for p in parameters)
    takes_any_number = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return None if takes_any_number and not n_required else n_required


def dtype_name(dtype: torch.dtype) -> str:
    """Write a dtype as numpy does, for the attributes of a result.

    Examples:
        >>> dtype_name(torch.float32)
        'float32'
    """
    return str(dtype).removeprefix("torch.")
