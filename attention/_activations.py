"""How large single activations are beside the others of their layer, token by token.

Some tokens of trained transformers carry activations thousands of times the usual (Sun et al.
2024), and it is these that heads then look at for want of anything better.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


@contextmanager
def watching_activations(
    blocks: Mapping[str, nn.Module],
) -> Iterator[dict[str, list[Array]]]:
    """Record, for each call of a block, the ratio of `measure_ratios` of what goes into it.

    Blocks whose first input is not `(sample, token, feature)` give nothing.
    """
    ratios: dict[str, list[Array]] = {name: [] for name in blocks}

    with ExitStack() as stack:
        for name, block in blocks.items():

            def receive(
                _module: nn.Module, args: Any, kwargs: Any, *, into: list[Array] = ratios[name]
            ) -> None:
                arguments = [*args, *kwargs.values()]
                hidden = next((x for x in arguments if isinstance(x, Tensor)), None)
                if hidden is not None and hidden.dim() == 3 and hidden.is_floating_point():
                    into.append(measure_ratios(hidden))

            stack.enter_context(block.register_forward_pre_hook(receive, with_kwargs=True))
        yield ratios


def measure_ratios(hidden: Tensor) -> Array:
    """The largest magnitude in each token over the median magnitude of its sample.

    Args:
        hidden: Activations, `(sample, token, feature)`.

    Returns:
        `(sample, token)`; NaN where the median is zero.
    """
    magnitudes = hidden.detach().float().abs()
    medians = magnitudes.flatten(1).median(1).values[:, None]
    ratios = magnitudes.amax(-1) / torch.where(medians > 0, medians, torch.nan)
    return np.asarray(ratios.cpu().double())
