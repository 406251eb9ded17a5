"""All branches of a layer as one fused loss, whose gradients are made in the forward pass.

The logits of all branches, `(row, branch, class)`, are never kept. They are made a chunk at a time,
turned into a loss and its slope, and the slope into gradients, while they are in the cache.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probes._branches.potentials import POTENTIALS, LossName, chunk_sizes, mean_factor
from probes._branches.targets import as_distribution


def exact_loss(
    features: Tensor, weights: Tensor, summed_weights: Tensor, targets: Tensor, loss: LossName
) -> Tensor:
    """Sum over branches of the mean loss, without keeping any logits.

    Args:
        features: Shape `(row, width)`.
        weights: Shape `(branch, class, width)`.
        summed_weights: `weights` summed over branches, `(class, width)`: all that the targets meet.
        targets: Class indices `(row,)`, or one number per class `(row, class)`.
        loss: `"bce"` or `"ce"`.
    """
    plan = _Plan(loss, features.requires_grad, weights.requires_grad)
    value: Tensor = _FusedLoss.apply(features, weights, summed_weights.detach(), targets, plan)[0]
    return value


@dataclass(frozen=True)
class _Plan:
    """What a fused loss computes: which loss, and which gradients."""

    loss: LossName
    needs_feature_gradient: bool
    needs_weight_gradient: bool


class _FusedLoss(torch.autograd.Function):
    """The loss, and as further outputs the gradients that its backward pass hands out."""

    generate_vmap_rule = True

    # No in-place sums: under vmap a sum may be batched where its first term is not.
    @staticmethod
    def forward(
        features: Tensor, weights: Tensor, summed_weights: Tensor, targets: Tensor, plan: _Plan
    ) -> tuple[Tensor, Tensor, Tensor]:
        n_branches, n_classes, _ = weights.shape
        chunk_rows, chunk_branches = chunk_sizes(
            len(features), n_branches, n_classes, features.device
        )

        total = features.new_zeros(())
        feature_gradients: list[Tensor] = []
        weight_gradient: Tensor | None = None  # the sum over the row chunks so far

        row_chunks = zip(features.split(chunk_rows), targets.split(chunk_rows), strict=True)
        for rows, row_targets in row_chunks:
            total, feature_gradient, weight_gradients = _add_potentials(
                total, rows, row_targets, weights.split(chunk_branches), plan
            )

            # The targets' part is linear in the logits: target . (W h), summed over branches.
            pull = _pull_of_targets(summed_weights, row_targets)
            total = total - (pull * rows).sum()
            feature_gradients.append(feature_gradient - pull)

            if plan.needs_weight_gradient:
                features_by_class = as_distribution(row_targets, n_classes, rows.dtype).mT @ rows
                gradient = torch.cat(weight_gradients) - features_by_class
                weight_gradient = (
                    gradient if weight_gradient is None else weight_gradient + gradient
                )

        factor = mean_factor(plan.loss, len(features), n_classes)
        nothing = features.new_zeros(0)
        return (
            total * factor,
            torch.cat(feature_gradients) * factor if plan.needs_feature_gradient else nothing,
            weight_gradient * factor if weight_gradient is not None else nothing,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        features, weights, _, targets, ctx.plan = inputs
        gradients = output[1:]
        ctx.mark_non_differentiable(*gradients)
        ctx.save_for_backward(features, weights, targets, *gradients)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        features, weights, targets, feature_gradient, weight_gradient = ctx.saved_tensors
        plan: _Plan = ctx.plan

        if torch.is_grad_enabled():
            # Somebody will differentiate again: give them the gradient as a graph.
            feature_gradient, weight_gradient = _differentiable_gradients(
                features, weights, targets, plan.loss
            )

        return (
            upstream * feature_gradient if plan.needs_feature_gradient else None,
            upstream * weight_gradient if plan.needs_weight_gradient else None,
            None,
            None,
            None,
        )


def _add_potentials(
    total: Tensor,
    rows: Tensor,
    row_targets: Tensor,
    weight_chunks: tuple[Tensor, ...],
    plan: _Plan,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Add the sum of F(logits) of some rows to `total`; also its gradients.

    Returns:
        The new total, the gradient `(row, width)` with respect to the rows, and those with respect
        to each chunk of weights.
    """
    has_soft_targets = row_targets.dim() > 1
    target_mass = row_targets.sum(-1) if has_soft_targets else torch.ones_like(rows[:, 0])

    feature_gradient = torch.zeros_like(rows)
    weight_gradients: list[Tensor] = []

    for weights in weight_chunks:
        n_branches, n_classes, _ = weights.shape
        stacked_weights = weights.flatten(0, 1)

        logits = (rows @ stacked_weights.mT).unflatten(1, (n_branches, n_classes))
        value, slope = POTENTIALS[plan.loss](logits, target_mass)
        total = total + value

        if plan.needs_feature_gradient:
            feature_gradient = torch.addmm(feature_gradient, slope.flatten(1), stacked_weights)
        if plan.needs_weight_gradient:
            weight_gradients.append((slope.flatten(1).mT @ rows).view_as(weights))

    return total, feature_gradient, weight_gradients


def _pull_of_targets(summed_weights: Tensor, row_targets: Tensor) -> Tensor:
    """Return what each row's target picks from the summed weights, `(row, width)`."""
    if row_targets.dim() > 1:
        return row_targets @ summed_weights
    return summed_weights.index_select(0, row_targets)


def _differentiable_gradients(
    features: Tensor, weights: Tensor, targets: Tensor, loss: LossName
) -> tuple[Tensor, Tensor]:
    """Make both gradients in plain differentiable operations, all branches at once."""
    n_classes = weights.shape[1]
    distribution = as_distribution(targets, n_classes, features.dtype)[:, None]
    logits = torch.einsum("rd,kcd->rkc", features, weights)

    if loss == "bce":
        slope = logits.sigmoid()
    else:
        slope = logits.softmax(-1) * distribution.sum(-1, keepdim=True)

    error = (slope - distribution) * mean_factor(loss, len(features), n_classes)
    feature_gradient = torch.einsum("rkc,kcd->rd", error, weights)
    weight_gradient = torch.einsum("rkc,rd->kcd", error, features)
    return feature_gradient, weight_gradient
