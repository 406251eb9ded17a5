"""Losses written out plainly, without hooks or fusion: the oracle for `probes`, and others."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """One value per sample; in a module that other processes can import."""
    return F.cross_entropy(logits, y, reduction="none")


def branch_loss(features: Tensor, weight: Tensor, y: Tensor, kind) -> Tensor:
    """One branch: an ordinary bias-free linear layer and an ordinary loss from torch."""
    logits = F.linear(features, weight)
    has_indices = y.dim() == 1

    if kind == "bce":
        target = F.one_hot(y, len(weight)).to(logits) if has_indices else y.to(logits)
        return F.binary_cross_entropy_with_logits(logits, target)
    if kind == "ce":
        return F.cross_entropy(logits, y if has_indices else y.to(logits))
    return kind(logits, y)


def layer_loss(features: Tensor, weights: list[Tensor], y: Tensor, kind) -> Tensor:
    """All branches of a layer, one after the other."""
    return torch.stack([branch_loss(features, weight, y, kind) for weight in weights]).sum()


def weights_of(probe, layer: str) -> list[Tensor]:
    """Every branch's weight, static ones first, active ones as leaves that can be trained."""
    branches = probe._by_layer()[layer]

    static_weights = [] if branches.static is None else list(branches.static)
    active_weights = [] if branches.active is None else list(branches.active)
    return static_weights + active_weights
