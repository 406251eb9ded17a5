"""What each torch function means on the way from scores to attention: one look tells.

Most functions mean nothing, and are in no set.
"""

from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Role: TypeAlias = Literal[
    "kernel",  # computes attention in one call
    "heads",  # runs a whole `nn.MultiheadAttention`
    "softmax",  # makes a map
    "logarithm",  # makes the logarithm of a map
    "exponential",  # may make a map of its logarithm
    "carries",  # hands a map on, in another form or with some weights dropped
    "mixes",  # hands a map on, its heads mixed
    "multiplies",  # may multiply a map with the values
]

_KERNELS = {
    F.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
}

_SOFTMAXES = {
    *(F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax),
    *(torch.ops.aten.softmax, torch.ops.aten.softmax.int),
    *(torch.ops.aten._softmax, torch.ops.aten._softmax.default),
}

_LOGARITHMS = {
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax, torch.special.log_softmax),
    *(torch.ops.aten.log_softmax, torch.ops.aten.log_softmax.int),
    *(torch.ops.aten._log_softmax, torch.ops.aten._log_softmax.default),
}

_EXPONENTIALS = {torch.exp, torch.exp_, Tensor.exp, Tensor.exp_}

_PRODUCTS = {
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__),
    *(torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm, torch.einsum),
}

# What may happen to a map between its softmax and its product with the values.
_MIXERS = {F.linear, torch.conv2d, F.batch_norm, F.layer_norm}
_CARRIERS = {
    *(F.dropout, F.alpha_dropout, torch.dropout, torch.where),
    *(torch.clone, torch.div, torch.flatten, torch.masked_fill, torch.movedim, torch.mul),
    *(torch.nan_to_num, torch.permute, torch.reshape, torch.squeeze, torch.swapaxes),
    *(torch.transpose, torch.unflatten, torch.unsqueeze),
    *(Tensor.bfloat16, Tensor.clone, Tensor.contiguous, Tensor.detach, Tensor.div),
    *(Tensor.double, Tensor.expand, Tensor.flatten, Tensor.float, Tensor.half, Tensor.mul),
    *(Tensor.masked_fill, Tensor.movedim, Tensor.nan_to_num, Tensor.permute, Tensor.reshape),
    *(Tensor.squeeze, Tensor.swapaxes, Tensor.to, Tensor.transpose, Tensor.type),
    *(Tensor.type_as, Tensor.unflatten, Tensor.unsqueeze, Tensor.view, Tensor.__getitem__),
    *(Tensor.__mul__, Tensor.__rmul__, Tensor.__truediv__),
    Tensor.mT.__get__,  # type: ignore[attr-defined]
}

ROLES: dict[Any, Role] = {
    **dict.fromkeys(_CARRIERS, "carries"),
    **dict.fromkeys(_MIXERS, "mixes"),
    **dict.fromkeys(_PRODUCTS, "multiplies"),
    **dict.fromkeys(_SOFTMAXES, "softmax"),
    **dict.fromkeys(_KERNELS, "kernel"),
    **dict.fromkeys(_LOGARITHMS, "logarithm"),
    **dict.fromkeys(_EXPONENTIALS, "exponential"),
    F.multi_head_attention_forward: "heads",
}
