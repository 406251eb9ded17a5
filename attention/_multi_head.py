"""A look inside torch's own multi-head attention."""

from collections.abc import Callable
from types import FunctionType

import torch.nn.functional as F
from torch import Tensor


def multi_head_with(kernel: Callable[..., Tensor], softmax: Callable[..., Tensor]) -> FunctionType:
    """Give `multi_head_attention_forward` another kernel and another softmax, for one call.

    A torch function mode is off while torch runs this function, so what happens inside cannot be
    seen from outside. The copy shares the original's code, so its output is the same; only the two
    names are looked up elsewhere, and nothing global is patched.
    """
    original = F.multi_head_attention_forward
    replacements = {
        "has_torch_function": lambda _: False,  # it would hand over to the mode, and so for ever
        "scaled_dot_product_attention": kernel,
        "softmax": softmax,
    }

    copy = FunctionType(
        original.__code__, vars(F) | replacements, original.__name__, original.__defaults__
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy
