from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from probes._model.distributed import sum_over_ranks
from probes.schedules import Adaptive


def adaptive_weights(
    rule: Adaptive, main: Tensor, parts: dict[str, Tensor], edges: dict[str, list[GradientEdge]]
) -> dict[str, Tensor]:
    """One strength per layer, from the gradients of both losses at the layer's output.

    Raises:
        RuntimeError: If a layer's output has no gradient to compare.
    """
    missing = [name for name in parts if name not in edges]
    if missing:
        raise RuntimeError(
            f"an adaptive alpha found no gradient at {', '.join(missing)}: it needs an eager model "
            "(not a compiled one) whose layers are trained"
        )
    flat = [edge for name in parts for edge in edges[name]]
    found = torch.autograd.grad(main, flat, retain_graph=True, allow_unused=True)
    main_grads = iter(found)
    rows = []
    for name, part in parts.items():
        pulls = torch.autograd.grad(part, edges[name], retain_graph=True, allow_unused=True)
        pairs = [(next(main_grads), pull) for pull in pulls]
        if all(g is None for g, _ in pairs):
            raise RuntimeError(f"`main`: the main loss does not depend on layer {name!r}")
        rows.append(_inner_products(pairs, main))
    main_sq, auxiliary_sq, dot = sum_over_ranks(torch.stack(rows)).unbind(1)
    return dict(zip(parts, rule.weigh(main_sq, auxiliary_sq, dot), strict=True))


def _inner_products(pairs: Sequence[tuple[Tensor | None, Tensor | None]], like: Tensor) -> Tensor:
    totals = like.new_zeros(3, dtype=torch.promote_types(like.dtype, torch.float32))
    for g, h in pairs:
        a, b = (None if t is None else t.to(totals.dtype).flatten() for t in (g, h))
        both = a is not None and b is not None
        products = (
            a @ a if a is not None else 0.0,
            b @ b if b is not None else 0.0,
            a @ b if both else 0.0,  # type: ignore[operator]  # `both` says neither is None
        )
        totals += torch.stack([torch.as_tensor(p).to(totals) for p in products])
    return totals
