"""Active branches live outside the wrapped model: their gradients are averaged over ranks here."""

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn


def synchronise_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average each parameter's gradient over all ranks as soon as it is made; asking twice is fine.

    To be asked at every loss: copies, pickles and loaded states may be other parameters.
    """
    for parameter in parameters:
        hooks = parameter._post_accumulate_grad_hooks or {}
        if _average_gradient not in hooks.values():
            parameter.register_post_accumulate_grad_hook(_average_gradient)


def sum_over_ranks(values: Tensor) -> Tensor:
    """The sum over all ranks; the values themselves in a single process."""
    if _several_ranks():
        dist.all_reduce(values)
    return values


def _average_gradient(parameter: Tensor) -> None:
    # With accumulation the sum so far is averaged again: the mean of equal values is themselves.
    if parameter.grad is not None and _several_ranks():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
