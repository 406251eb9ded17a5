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

    Each layer's output takes the way that the last layer's output takes in the model (final norm,
    pooling, head) and is compared with the targets by cross-entropy. The training objective is

        exits.loss(targets) = sum over layers of weight * mean cross-entropy,

    where the last layer's is that of the model's own output, so nothing is to be added. The model's
    output, `state_dict` and inference are what they were; batch norms on the way use the exit's
    batch, but keep the running statistics of the model's own passes. Keep the exits: when they are
    collected, they are detached. Under DistributedDataParallel call the wrapped model as usual;
    what `fully_shard` has split is gathered as needed, on all ranks at once. The exits' own heads
    average their gradients over the ranks themselves.

    Args:
        model: A classifier with logits `(sample, class)` or a language model with logits `(sample,
            token, class)`, alone, first in a tuple, or as `.logits`. Compiled and data-parallel
            wrappers are looked through. It is run once, in eval mode, on `sample`.
        layers: Names or shell patterns in forward order, the model's last layer last, such as
            `"blocks.*"` or `["transformer.h.3", "transformer.h.11"]`. None takes the model's
            repeated blocks, of an encoder-decoder the decoder's; see `resonance.find_blocks`, whose
            reason is part of what the exits print.
        weights: One number (or schedule `f(step) -> float`) per layer; `"standard"`,
            `"deep_supervision"` or `"auxiliary"`; or a weighting such as
            `probes.weightings.asymmetric(0.7)`. Schedules count losses: give them the run's length.
        head: `"model"`: the model's own, found by following its last layer's output; `"own"`: a
            linear head per exit, to be trained as `exits.parameters()`; `"tuned"`: a tuned lens,
            the model's own head after an affine translator `h + A h + b` per exit, at first the
            identity, which alone is trained: early exits send nothing into the model or its head;
            or a callable from a layer's output to logits (its parameters, if any, are yours to
            train).
        norm: `"auto"`: what the model itself puts between its last layer and its head; None:
            nothing but pooling; or a callable in its place. With a callable `head`, `"auto"` is
            None.
        sample: An input batch, for models whose input cannot be guessed, or whose pooling looks at
            it (padding); a tuple holds several arguments, a dict keyword arguments.
        seed: Decides the exits' own heads.

    Returns:
        The exits, which are also a context manager.

    Raises:
        ValueError: If an argument does not fit; nothing has been changed then.

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
