from collections.abc import Sequence
from typing import Any

from torch import nn

from probes._exit_training.forward_trace import ForwardTrace, name_layers, trace_forward
from probes._exit_training.losses import Exits
from probes._exit_training.resolve_heads import HeadOption, NormOption, resolve_heads
from probes._exit_training.weights import Weights, resolve_weights
from probes._model.check_model import check_model
from resonance_toolkit import unwrap


def attach_exits(
    model: nn.Module,
    layers: str | Sequence[str] | None = None,
    *,
    weights: Weights = "deep_supervision",
    head: HeadOption = "model",
    norm: NormOption = "auto",
    sample: Any = None,
    seed: int = 0,
) -> Exits:
    """Give named layers a loss through the model's own head, for training early exits.

    The output of each layer goes through what follows the model's last layer (final norm, pooling,
    head), and the resulting logits are compared with the targets by cross-entropy. The training
    objective is

        exits.loss(targets) = sum over layers of weight * mean cross-entropy,

    where the cross-entropy of the last layer is that of the model's own output. So this is the
    whole objective; do not add the main loss. The model's output, its `state_dict` and inference
    do not change. Batch norms between an exit and its logits use the statistics of the exit's
    batch, but their running statistics remain those of the model's own passes. Keep a reference to
    the exits: when they are garbage-collected, they are detached.

    Under DistributedDataParallel, call the wrapped model as usual. What `fully_shard` has split is
    gathered as needed, on all ranks at once. Gradients of the exits' own heads are averaged over
    the ranks.

    Args:
        model: A classifier with logits `(sample, class)` or a language model with logits `(sample,
            token, class)`, returned alone, first in a tuple, or as `.logits`. It may be compiled or
            in a data-parallel wrapper. It is run once, in eval mode, on `sample`.
        layers: Names or shell patterns in forward order, the model's last layer last, such as
            `"blocks.*"` or `["transformer.h.3", "transformer.h.11"]`. None takes the model's
            repeated blocks (in an encoder-decoder, the decoder's). Printing the exits shows why
            they were chosen; see `resonance.find_blocks`.
        weights: One number (or schedule `f(step) -> float`) per layer; `"standard"`,
            `"deep_supervision"` or `"auxiliary"`; or a weighting such as
            `probes.weightings.asymmetric(0.7)`. The steps of a schedule are losses, so give it
            the number of losses in the run.
        head: `"model"`: the model's own head, found by following the output of its last layer.
            `"own"`: a linear head per exit; add `exits.parameters()` to your optimizer. `"tuned"`:
            a tuned lens, which puts an affine translator `h + A h + b` per exit before the
            model's own head. Translators start as the identity, and only they are trained: early
            exits send no gradient into the model or its head. Or a callable from a layer's output
            to logits, whose parameters, if any, you train yourself.
        norm: `"auto"`: what the model itself has between its last layer and its head. None:
            only pooling. Or a callable that replaces it. With a callable `head`, `"auto"` means
            None.
        sample: An input batch, for models whose input cannot be guessed, or whose pooling depends
            on it (padding). A tuple holds several arguments, a dict keyword arguments.
        seed: Determines the initial weights of the exits' own heads.

    Returns:
        The exits, which are also a context manager.

    Raises:
        ValueError: If an argument does not fit. The model has not been changed then.

    Examples:
        >>> import torch
        >>> from probes import weightings
        >>> layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
        >>> model = nn.Sequential(*layers)
        >>> exits = attach_exits(model, ["1", "3"], weights=weightings.asymmetric(0.75))
        >>> exits
        Exits(step=0, attached)
        layer  output  weight  way to the logits
        1      8       0.75    4
        3              0.25    the model's output
        >>> logits = model(torch.randn(5, 8))
        >>> exits.loss(torch.tensor([0, 1, 2, 0, 1])).backward()
        >>> exits.detach()
    """
    check_model(model)
    layer_names, reason = name_layers(model, layers)
    weighting = resolve_weights(weights, layer_names)

    root = unwrap(model)
    forward_trace = trace_forward(root, layer_names, sample)
    points, own_heads = resolve_heads(root, forward_trace, head, norm, seed)

    shared_modules = {name for point in points.values() for name in point.head.modules}
    segments = {
        name: _exit_of_parameter(name, forward_trace, shared_modules)
        for name, _ in root.named_parameters()
    }
    is_tuned = head == "tuned"
    exits = Exits(root, points, layer_names[-1], weighting, segments, own_heads, is_tuned=is_tuned)
    exits.reason = reason
    return exits


def _exit_of_parameter(parameter: str, forward_trace: ForwardTrace, shared: set[str]) -> int:
    """Return the number of the first exit that a parameter lies before; 0 for what all share."""
    module_name = parameter.rpartition(".")[0]
    if any(module_name == name or module_name.startswith(f"{name}.") for name in shared):
        return 0

    # What runs after the last layer belongs to the last exit.
    last_exit = len(forward_trace.layers) - 1
    return min(forward_trace.count_exits_before(module_name), last_exit)
