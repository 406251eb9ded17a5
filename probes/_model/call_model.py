from collections.abc import Mapping
from typing import Any

from torch import nn


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model: a mapping holds keyword arguments, a tuple or list positional ones.

    Examples:
        >>> call_model(nn.Identity(), {"input": 3}), call_model(nn.Identity(), (3,))
        (3, 3)
    """
    # Any mapping, not only a dict: a tokenizer gives a BatchEncoding.
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, list | tuple):
        return model(*inputs)
    return model(inputs)
