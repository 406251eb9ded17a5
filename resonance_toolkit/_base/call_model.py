import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from resonance_toolkit._base.facts import dtype_name, first_tensor
from resonance_toolkit._base.find_layers import unwrap


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model the way its inputs ask for.

    Args:
        model: Any module.
        inputs: A mapping is keywords, a tuple positional arguments, all else one argument.

    Returns:
        Whatever the model returns.

    Raises:
        ValueError: If the call fails because inputs and weights have different dtypes.
        TypeError: If it fails because arguments are missing, or are too many.

    Examples:
        >>> import torch
        >>> call_model(nn.Bilinear(1, 1, 1), (torch.ones(3, 1), torch.ones(3, 1))).shape
        torch.Size([3, 1])
        >>> call_model(nn.Identity(), {"input": 5})
        5
    """
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs, **_cache_keywords(model, inputs))
        if isinstance(inputs, tuple):
            return model(*inputs)
        return model(inputs)
    except RuntimeError as error:
        sentence = _dtype_sentence(model, inputs, str(error))
        if sentence is None:
            raise
        raise ValueError(f"{sentence} ({error})") from error
    except TypeError as error:
        sentence = _arguments_sentence(model, inputs)
        if sentence is None:
            raise
        raise TypeError(sentence) from error


def _cache_keywords(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what asks a language model of transformers to keep nothing for a next token.

    What is kept takes memory, and some write to it in place, which no backward pass survives.
    """
    inner_model = unwrap(model)
    config = getattr(inner_model, "config", None)
    if "use_cache" in inputs or not getattr(config, "use_cache", False):
        return {}

    takes_cache = "use_cache" in inspect.signature(inner_model.forward).parameters
    return {"use_cache": False} if takes_cache else {}


def _arguments_sentence(model: nn.Module, inputs: Any) -> str | None:
    """Say which arguments are missing or too many; None if that is not what went wrong."""
    arguments = () if isinstance(inputs, Mapping) else inputs
    arguments = arguments if isinstance(arguments, tuple) else (arguments,)
    keywords = inputs if isinstance(inputs, Mapping) else {}

    inner_model = unwrap(model)
    try:
        inspect.signature(inner_model.forward).bind(*arguments, **keywords)
    except TypeError as error:
        return (
            f"`data`: the inputs do not fit {type(inner_model).__name__}.forward: {error}; several "
            "inputs are a tuple of their own, ((x1, x2), y), or a mapping by name"
        )
    return None


def _dtype_sentence(model: nn.Module, inputs: Any, error: str) -> str | None:
    """Say which dtypes do not meet; None if that is not what went wrong."""
    tensor = first_tensor(inputs)
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    if tensor is None or weight is None or tensor.dtype == weight.dtype:
        return None

    # Whole numbers may be tokens: only bytes are what images come in.
    is_byte = not tensor.is_floating_point() and tensor.itemsize == 1
    is_image = is_byte and (tensor.dim() >= 3 or "same dtype" in error)
    if not (tensor.is_floating_point() or is_image):
        return None
    return (
        f"`data`: the forward pass failed on inputs of {dtype_name(tensor.dtype)} for weights of "
        f"{dtype_name(weight.dtype)}; convert the inputs, such as by x.to({weight.dtype})"
    )
