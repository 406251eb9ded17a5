"""From the user's `alpha` to one strength per layer.

`resolve_alpha` is asked once, when a probe is attached. Schedules then give a strength by the step,
`scheduled_strength`; an adaptive rule gives strengths by the gradients, `adaptive_strengths`.
"""

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from probes._model.distributed import sum_over_ranks
from probes.schedules import Adaptive, Schedule, constant
from resonance_toolkit import select

Alpha: TypeAlias = float | Mapping[str, float | Schedule] | Schedule | Adaptive

# A schedule per layer, or the one adaptive rule for all of them.
Strength: TypeAlias = Adaptive | dict[str, Schedule]


def resolve_alpha(alpha: Alpha, layers: Sequence[str]) -> Strength:
    """Find the schedule of each layer; in a mapping names go before patterns.

    Raises:
        ValueError: If a number is not finite or negative, or a mapping leaves out a layer.
        TypeError: If `alpha` is nothing of the kind.
    """
    if isinstance(alpha, Adaptive):
        return alpha
    if not isinstance(alpha, Mapping):
        return dict.fromkeys(layers, _as_schedule(alpha))

    # Patterns first, so that a layer's own name overrides them.
    entries = sorted(alpha.items(), key=lambda entry: entry[0] in layers)
    schedules: dict[str, Schedule] = {}
    for pattern, value in entries:
        for name in select(layers, pattern, argument="alpha"):
            schedules[name] = _as_schedule(value)

    missing_layers = [name for name in layers if name not in schedules]
    if missing_layers:
        raise ValueError(f"`alpha`: expected a strength for every layer, none for {missing_layers}")
    return {name: schedules[name] for name in layers}


def scheduled_strength(schedule: Schedule, step: int) -> float:
    """Return the strength at a step, checked: a schedule is the user's code."""
    return _check_strength(schedule(step))


def adaptive_strengths(
    rule: Adaptive,
    main_loss: Tensor,
    layer_losses: dict[str, Tensor],
    edges: dict[str, list[GradientEdge]],
) -> dict[str, Tensor]:
    """Let a rule decide one strength per layer, by the gradients of both losses at its output.

    Raises:
        RuntimeError: If a layer's output has no gradient to compare.
    """
    missing_layers = [name for name in layer_losses if name not in edges]
    if missing_layers:
        raise RuntimeError(
            f"an adaptive alpha found no gradient at {', '.join(missing_layers)}: it needs an "
            "eager model (not a compiled one) whose layers are trained"
        )

    # The main loss once for all layers: one backward pass through activations.
    all_edges = [edge for name in layer_losses for edge in edges[name]]
    main_gradients = iter(
        torch.autograd.grad(main_loss, all_edges, retain_graph=True, allow_unused=True)
    )

    products = []
    for name, layer_loss in layer_losses.items():
        auxiliary_gradients = torch.autograd.grad(
            layer_loss, edges[name], retain_graph=True, allow_unused=True
        )
        pairs = [(next(main_gradients), auxiliary) for auxiliary in auxiliary_gradients]

        if all(main_gradient is None for main_gradient, _ in pairs):
            raise RuntimeError(f"`main`: the main loss does not depend on layer {name!r}")
        products.append(_inner_products(pairs, main_loss))

    # Summed over ranks, so that every rank decides alike.
    main_squared, auxiliary_squared, dot = sum_over_ranks(torch.stack(products)).unbind(1)
    strengths = rule.weigh(main_squared, auxiliary_squared, dot)
    return dict(zip(layer_losses, strengths, strict=True))


def _inner_products(
    pairs: Sequence[tuple[Tensor | None, Tensor | None]], template: Tensor
) -> Tensor:
    """Sum |g|^2, |h|^2 and g . h over pairs of gradients; a gradient that is None is zero."""
    totals = template.new_zeros(3, dtype=torch.promote_types(template.dtype, torch.float32))
    zero = totals.new_zeros(())

    for main_gradient, auxiliary_gradient in pairs:
        g = None if main_gradient is None else main_gradient.to(totals.dtype).flatten()
        h = None if auxiliary_gradient is None else auxiliary_gradient.to(totals.dtype).flatten()

        main_squared = zero if g is None else g @ g
        auxiliary_squared = zero if h is None else h @ h
        dot = zero if g is None or h is None else g @ h

        # The layers of one model may be on several devices.
        totals += torch.stack([p.to(totals) for p in (main_squared, auxiliary_squared, dot)])
    return totals


def _as_schedule(value: float | Schedule) -> Schedule:
    if not callable(value):
        return constant(_check_strength(value))

    # Tried once, so that a schedule that gives no number is refused before training.
    scheduled_strength(value, 0)
    return value


def _check_strength(value: Any) -> float:
    # Not `check_not_negative`: what is not a number at all is a TypeError here, with all that fits.
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"`alpha`: expected a number, mapping or schedule, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`alpha`: expected a finite number of at least 0, got {value!r}")
    return float(value)
