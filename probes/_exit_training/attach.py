from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probes._exit_training.forward_trace import Trace, name_layers, trace
from probes._exit_training.head import Head, follow
from probes._exit_training.losses import Exits
from probes._exit_training.reports import ExitPoint
from probes._exit_training.weights import Weights, resolve_weights
from probes._model.check_model import check_model
from probes._model.distributed import check_mates
from probes._model.failed_pass import describe_error, failing_line
from probes._model.pooling import Pool, resolve_pool
from resonance_toolkit import evaluating, preserving_rng, unwrap

HeadLike = str | Callable[[Tensor], Tensor]
NormLike = str | Callable[[Tensor], Tensor] | None


def attach_exits(
    model: nn.Module,
    layers: str | Sequence[str],
    *,
    weights: Weights = "deep_supervision",
    head: HeadLike = "model",
    norm: NormLike = "auto",
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
            `"blocks.*"` or `["transformer.h.3", "transformer.h.11"]`.
        weights: One number (or schedule `f(step) -> float`) per layer; `"standard"`,
            `"deep_supervision"` or `"auxiliary"`; or a weighting such as
            `probes.weightings.asymmetric(0.7)`. Schedules count losses: give them the run's length.
        head: `"model"`: the model's own, found by following its last layer's output; `"own"`: a
            linear head per exit, to be trained as `exits.parameters()`; or a callable from a
            layer's output to logits (its parameters, if any, are yours to train).
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
    names = name_layers(model, layers)
    resolve_weights(weights, names)
    root = unwrap(model)
    seen = trace(root, names, sample)
    points, heads = resolve_heads(root, seen, head, norm, seed)
    shared = {name for point in points.values() for name in point.head.modules}
    segments = {name: _segment(name, seen, shared) for name, _ in root.named_parameters()}
    return Exits(root, points, names[-1], weights, segments, heads)


def resolve_heads(
    root: nn.Module, seen: Trace, head: HeadLike, norm: NormLike, seed: int
) -> tuple[dict[str, ExitPoint], dict[str, nn.Module]]:
    """How each early exit comes to its logits, tried out on what a pass has shown.

    Raises:
        ValueError: If an exit's output does not fit the head.
    """
    _check_ways(head, norm)
    early, heads, points = seen.layers[:-1], {}, {}
    way = _way(root, seen, head, norm)
    check_mates(root, way.modules)
    for index, name in enumerate(early):
        fitted = way if head != "own" else _pooled(way, root, seen, name)
        try:
            with torch.no_grad(), evaluating(root), preserving_rng():
                made = fitted(root, seen.hidden[name])
        except Exception as error:  # the user's modules: any failure is one of fit
            raise ValueError(
                _unfit(name, seen, fitted, describe_error(error)) + failing_line(error)
            ) from None
        if head == "own":
            heads[name] = _own_head(made, seen.logits, seed + index)
        elif made.shape != seen.logits.shape:
            raise ValueError(_unfit(name, seen, fitted, f"it gives {tuple(made.shape)}"))
        points[name] = ExitPoint(tuple(seen.hidden[name].shape[1:]), fitted)
    return points, heads


def _way(root: nn.Module, seen: Trace, head: HeadLike, norm: NormLike) -> Head:
    given = None if norm is None or isinstance(norm, str) else norm
    if not isinstance(head, str):
        return Head((), given, head)
    try:
        way = follow(root, seen)
    except ValueError:
        if head == "model":
            raise
        return Head((), given)  # an own head needs no way; pooling is found by shape
    way = way if norm == "auto" else way.without_norm(root, given)
    return way if head == "model" else way.without_head()


def _pooled(way: Head, root: nn.Module, seen: Trace, name: str) -> Head:
    """The way to features for an own head: one vector per place of the model's logits."""
    with torch.no_grad(), evaluating(root), preserving_rng():
        try:
            made = way(root, seen.hidden[name])
        except Exception:  # a norm of another width: the exit does without
            way = Head((), way.norm)
            made = way(root, seen.hidden[name])
    if made.dim() == seen.logits.dim():
        return way
    pool: Pool = resolve_pool("auto", made, name, root.get_submodule(name), root, None)
    return Head(way.steps, way.norm, pool)


def _own_head(features: Tensor, logits: Tensor, seed: int) -> nn.Module:
    width, classes = features.shape[-1], logits.shape[-1]
    head: nn.Linear = nn.utils.skip_init(nn.Linear, width, classes)
    drawn = torch.rand(classes, width, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        head.weight.copy_((2 * drawn - 1) / width**0.5)  # as nn.Linear draws it
        head.bias.zero_()
    return head.to(features.device, torch.promote_types(features.dtype, torch.float32))


def _segment(parameter: str, seen: Trace, shared: set[str]) -> int:
    module = parameter.rpartition(".")[0]
    if any(module == name or module.startswith(f"{name}.") for name in shared):
        return 0
    return min(seen.segment(module), len(seen.layers) - 1)


def _check_ways(head: object, norm: object) -> None:
    if not callable(head) and head not in ("model", "own"):
        raise ValueError(f"`head`: expected 'model', 'own' or a callable, got {head!r}")
    if norm is not None and not callable(norm) and norm != "auto":
        raise ValueError(f"`norm`: expected 'auto', None or a callable, got {norm!r}")


def _unfit(name: str, seen: Trace, way: Head, what: str) -> str:
    return (
        f"`head`: expected logits {tuple(seen.logits.shape)} from layer {name!r}, whose output is "
        f"{tuple(seen.hidden[name].shape)}, by way of {way}; {what}. A layer of another width "
        "needs head='own' or a callable"
    )
