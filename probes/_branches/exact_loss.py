"""All branches of a layer as one fused loss, whose gradients are made in the forward pass."""

from typing import Any

import torch
from torch import Tensor

from probes._branches.potentials import POTENTIALS, chunk_sizes, scale_of


def exact_loss(
    features: Tensor, weights: Tensor, summed: Tensor, targets: Tensor, kind: str
) -> Tensor:
    """Sum over branches of the mean loss, without keeping any logits.

    Args:
        features: Shape `(row, width)`.
        weights: Shape `(branch, class, width)`.
        summed: `weights` summed over branches, `(class, width)`: all that the targets meet.
        targets: Class indices `(row,)`, or one number per class `(row, class)`.
        kind: `"bce"` or `"ce"`.
    """
    loss: Tensor = _Fused.apply(
        features,
        weights,
        summed.detach(),
        targets,
        kind,
        features.requires_grad,
        weights.requires_grad,
    )[0]
    return loss


class _Fused(torch.autograd.Function):
    generate_vmap_rule = True

    # No in-place sums: under vmap a sum may be batched where its first term is not.
    @staticmethod
    def forward(
        features: Tensor,
        weights: Tensor,
        summed: Tensor,
        targets: Tensor,
        kind: str,
        want_features: bool,
        want_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        branches, classes, width = weights.shape
        by_row, by_branch = chunk_sizes(len(features), branches, classes, features.device)
        total = features.new_zeros(())
        feature_grads: list[Tensor] = []
        weight_grads: list[Tensor] = []  # one at the most: their sum over rows
        for rows, goals in zip(features.split(by_row), targets.split(by_row), strict=True):
            mass = goals.sum(-1) if goals.dim() > 1 else torch.ones_like(rows[:, 0])
            feature_grad = torch.zeros_like(rows)
            pieces = []
            for chunk in weights.split(by_branch):
                flat = chunk.reshape(-1, width)
                logits = (rows @ flat.mT).unflatten(1, (len(chunk), classes))
                value, slope = POTENTIALS[kind](logits, mass)
                total = total + value
                if want_features:
                    feature_grad = torch.addmm(feature_grad, slope.flatten(1), flat)
                if want_weights:
                    pieces.append((slope.flatten(1).mT @ rows).view_as(chunk))
            pull = _per_row(summed, goals)
            total = total - (pull * rows).sum()
            feature_grads.append(feature_grad - pull)
            if want_weights:
                piece = torch.cat(pieces) - _per_class(rows, goals, classes)
                weight_grads = [weight_grads[0] + piece if weight_grads else piece]
        scale = scale_of(kind, len(features), classes)
        nothing = features.new_zeros(0)
        return (
            total * scale,
            torch.cat(feature_grads) * scale if want_features else nothing,
            weight_grads[0] * scale if want_weights else nothing,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        features, weights, _, targets, ctx.kind, ctx.want_features, ctx.want_weights = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(features, weights, targets, *output[1:])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        features, weights, targets, feature_grad, weight_grad = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Somebody will differentiate again: give them the gradient as a graph.
            feature_grad, weight_grad = _gradients(features, weights, targets, ctx.kind)
        return (
            upstream * feature_grad if ctx.want_features else None,
            upstream * weight_grad if ctx.want_weights else None,
            *[None] * 5,
        )


def _gradients(
    features: Tensor, weights: Tensor, targets: Tensor, kind: str
) -> tuple[Tensor, Tensor]:
    """Both gradients in plain differentiable operations, all branches at once."""
    _, classes, _ = weights.shape
    goals = as_distribution(targets, classes, features.dtype)[:, None]
    logits = torch.einsum("rd,kcd->rkc", features, weights)
    slope = logits.sigmoid() if kind == "bce" else logits.softmax(-1) * goals.sum(-1, keepdim=True)
    error = (slope - goals) * scale_of(kind, len(features), classes)
    return torch.einsum("rkc,kcd->rd", error, weights), torch.einsum("rkc,rd->kcd", error, features)


def as_distribution(targets: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """Class indices as one-hot rows; anything else as it is."""
    if targets.dim() > 1:
        return targets.to(dtype)
    # A comparison, since `one_hot` looks at the values, which vmap forbids and CUDA waits for.
    return (targets[:, None] == torch.arange(classes, device=targets.device)).to(dtype)


def _per_row(summed: Tensor, goals: Tensor) -> Tensor:
    """What each row's target picks from the summed weights, `(row, width)`."""
    return goals @ summed if goals.dim() > 1 else summed.index_select(0, goals)


def _per_class(rows: Tensor, goals: Tensor, classes: int) -> Tensor:
    """The features summed by target, `(class, width)`."""
    return as_distribution(goals, classes, rows.dtype).mT @ rows
