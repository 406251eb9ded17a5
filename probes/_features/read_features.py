"""The features of layers for one batch after another, without a trace left in the model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from probes._model.attachment_points import find_attachment_points
from probes._model.latest_features import Calls, ready_features
from probes._model.listener import Listener
from probes._model.pooling import Pooling
from probes._model.without_fastpath import without_fastpath
from resonance_toolkit import call_model, evaluating, preserving, unwrap

ReadFeatures = Callable[[Any], dict[str, Tensor]]


@contextmanager
def reading_features(
    model: nn.Module,
    modules: dict[str, nn.Module],
    *,
    pool: Pooling,
    calls: Calls | None,
    sample: Any,
) -> Iterator[ReadFeatures]:
    """Give a function from a batch of inputs to the features of each layer, `(sample, width)`.

    Args:
        model: Called in eval mode, without gradients.
        modules: Layers by name; of `Blocks`, those without features are left out.
        pool: How outputs become features, as for `attach`.
        calls: Which calls of a repeated layer count, as for `attach`.
        sample: An input batch, of which shapes are used.
    """
    root = unwrap(model)
    points, *_ = find_attachment_points(root, modules, pool, sample, classes=1)
    pools = {name: point.pool for name, point in points.items()}

    with ExitStack() as stack:
        listener = stack.enter_context(Listener(pools, adaptive=False))
        listener.reattach(model)
        stack.enter_context(preserving(model))
        stack.enter_context(evaluating(model))
        stack.enter_context(listener.listening())
        stack.enter_context(without_fastpath())
        stack.enter_context(torch.no_grad())

        def read(inputs: Any) -> dict[str, Tensor]:
            call_model(root, inputs)
            capture = listener._capture
            captured = ready_features(capture, listener.layers, calls)
            return {
                name: pools[name].reduce_positions(tensors[-1], capture.counts.get(name))
                for name, tensors in captured.items()
            }

        yield read
