import dis
import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit._base.data.forms import tensors_in
from resonance_toolkit._base.facts import dtype_name, floating_dtype_of
from resonance_toolkit._base.find_layers import unwrap
from resonance_toolkit._base.showing import is_ours

# What torch says where dtypes do not meet.
_ABOUT_DTYPES = re.compile(r"dtype|scalar type|[Ii]nput type|not implemented for '|'indices'")


class FailedPassError(RuntimeError, ValueError):
    """A forward pass that torch could not make on the inputs, told with their shapes.

    Also a `RuntimeError`, as torch's own, for those who expect one.
    """


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with positional or keyword arguments, depending on its inputs.

    Args:
        model: Any module.
        inputs: A mapping is passed as keywords, a tuple as positional arguments, anything else as
            one argument.

    Returns:
        Whatever the model returns.

    Raises:
        ValueError: If the call fails in torch, such as for inputs of another shape or dtype.
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
    except (RuntimeError, IndexError, AssertionError) as error:
        # Nor is what a hook of ours has to say about the inputs.
        if not is_about_tensors(error) or _is_raised_by_us(error):
            raise
        sentence = _dtype_sentence(model, inputs, error)
        if sentence is not None:
            raise ValueError(f"{sentence} ({error})") from error
        raise FailedPassError(_failure_sentence(model, inputs, error)) from error
    except TypeError as error:
        sentence = _arguments_sentence(model, inputs)
        if sentence is None:
            raise
        raise TypeError(sentence) from error


def is_about_tensors(error: Exception) -> bool:
    """Tell whether torch or a layer may have raised an error about shapes or dtypes.

    Not for memory that runs out, whose class is one of its own.

    Examples:
        >>> is_about_tensors(RuntimeError("shapes cannot be multiplied"))
        True
        >>> is_about_tensors(torch.OutOfMemoryError())
        False
    """
    # Kernels that lack a dtype; a method without a body has another text, or none.
    if type(error) is NotImplementedError:
        return "not implemented for '" in str(error)
    # Layers assert what they need, too: timm's patch embedding, torch's multi-head attention.
    return type(error) in (RuntimeError, IndexError, AssertionError)


def keywords_of_forward(model: nn.Module) -> frozenset[str] | None:
    """Names of the arguments that a model's forward takes; None if it takes any keyword.

    Examples:
        >>> sorted(keywords_of_forward(nn.Bilinear(1, 1, 1)))
        ['input1', 'input2']
    """
    parameters = inspect.signature(unwrap(model).forward).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


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


def _dtype_sentence(model: nn.Module, inputs: Any, error: Exception) -> str | None:
    """Say which dtypes do not meet; None if that is not what went wrong."""
    tensors = tensors_in(inputs)
    weight_dtype = floating_dtype_of(model)
    if not tensors or weight_dtype is None:
        return None

    is_told_by_torch = _ABOUT_DTYPES.search(str(error)) is not None
    other_floating = _floating_of_other_dtype(tensors, weight_dtype)
    tensor = tensors[0]
    cure = f"x.to({weight_dtype})"

    if is_told_by_torch and "'indices'" in str(error):
        cure = "x.long(), which an embedding looks up"
    elif other_floating is not None:
        tensor = other_floating
    elif is_told_by_torch and not tensor.is_floating_point():
        # Bytes are what images come in; other whole numbers may be anything.
        if tensor.dtype == torch.uint8:
            cure = f"{cure} / 255"
    else:
        return None

    return (
        f"`data`: the forward pass failed on inputs of {dtype_name(tensor.dtype)} for weights of "
        f"{dtype_name(weight_dtype)}; convert the inputs, such as by {cure}"
    )


def _floating_of_other_dtype(tensors: list[Tensor], dtype: torch.dtype) -> Tensor | None:
    floating = (tensor for tensor in tensors if tensor.is_floating_point())
    return next((tensor for tensor in floating if tensor.dtype != dtype), None)


def _failure_sentence(model: nn.Module, inputs: Any, error: Exception) -> str:
    """Say what a model was called with, and what could be wrong with it."""
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(inputs)) or "none"
    sentence = f"`data`: the forward pass failed on inputs of shape {shapes}: {error}"

    rows = min(
        (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=0
    )
    wholes = [t for t in tensors_in(inputs) if t.numel() and t.dtype in (torch.int64, torch.int32)]
    largest = max((int(tensor.max()) for tensor in wholes), default=0)
    if isinstance(error, IndexError) and 0 < rows <= largest:
        return f"{sentence}; they hold {largest}, and an embedding has {rows} rows, from 0"
    return (
        f"{sentence}. Samples come first: of single samples make a batch, torch.stack(samples); "
        "several arguments are a tuple inside the pair, ((x1, x2), y)"
    )


def _is_raised_by_us(error: BaseException) -> bool:
    """Tell whether a `raise` of the toolkit's made an error, such as in a hook."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not is_ours(traceback.tb_frame.f_globals):
        return False

    # A function of torch that we call in the model's place fails in a frame of ours, too.
    code = traceback.tb_frame.f_code.co_code
    return dis.opname[code[traceback.tb_lasti]] == "RAISE_VARARGS"
