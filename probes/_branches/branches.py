from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from probes._branches.closed_form_loss import compressed_loss, orthogonal_excess
from probes._branches.exact_loss import exact_loss
from probes._branches.initialise import Init, draw_branches, orthogonal

# Called as `loss(logits, targets)` with the logits `(row, class)` of one branch.
BranchLoss = Callable[[Tensor, Tensor], Tensor]

_DRAWN: Any = {"dtype": torch.float64, "device": "cpu"}  # whatever the default device


@dataclass(frozen=True)
class Settings:
    """What all attachment points of a probe have in common."""

    n: int
    active: int
    classes: int
    loss: str | BranchLoss
    init: Init
    method: str
    seed: int


class Branches(nn.Module):
    """The branches of one attachment point: static ones first, active ones last."""

    static: Tensor | None
    gram: Tensor | None
    summed: Tensor
    active: nn.Parameter | None

    def __init__(self, layer: str, width: int, settings: Settings, like: Tensor) -> None:
        super().__init__()
        self.layer, self.width, self.settings = layer, width, settings
        self.n_static = settings.n - settings.active
        # Logits of half-precision models are made in float32: sigmoid losses need it.
        dtype = torch.promote_types(like.dtype, torch.float32)
        placed = like.to(dtype)
        drawn = self._draw()
        static = islice(drawn, self.n_static)
        summed = torch.zeros(settings.classes, width, **_DRAWN)
        if settings.method == "compressed":
            gram = torch.zeros(width, width, **_DRAWN)
            for weight in static:
                gram += weight.mT @ weight
                summed += weight
            self.register_buffer("static", None)
            self.register_buffer("gram", gram.to(placed))
        else:
            stack = torch.empty(self.n_static, *summed.shape, dtype=placed.dtype, device="cpu")
            for index, weight in enumerate(static):
                stack[index] = weight
                summed += stack[index]
            self.register_buffer("static", stack.to(placed))
            self.register_buffer("gram", None)
        self.register_buffer("summed", summed.to(placed))
        active = list(drawn)
        self.active = nn.Parameter(torch.stack(active).to(placed)) if active else None

    @property
    def n_parameters(self) -> int:
        """All weights, static ones included whether they are stored or not."""
        return self.settings.n * self.settings.classes * self.width

    @property
    def excess(self) -> float:
        """Excess kurtosis of a logit over the branches, for the closed form."""
        classes = self.settings.classes
        return orthogonal_excess(classes, self.width) if self.settings.init is orthogonal else 0.0

    @property
    def precision(self) -> torch.dtype:
        """What losses are computed in, though the weights may have been made half."""
        return torch.promote_types(self.summed.dtype, torch.float32)

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Sum over the branches of their mean losses on `features (row, width)`."""
        kind = self.settings.loss
        if not isinstance(kind, str):
            return self._custom_loss(features, targets, kind)
        total = features.new_zeros(())
        summed = self.summed.to(features)
        if self.gram is not None:
            gram = self.gram.to(features)
            total = compressed_loss(features, gram, summed, targets, self.n_static, self.excess)
        elif self.static is not None and self.n_static:
            total = exact_loss(features, self.static.to(features), summed, targets, kind)
        if self.active is not None:
            active = self.active.to(features)
            total = total + exact_loss(features, active, active.sum(0), targets, kind)
        return total

    def chunks(self, size: int = 16) -> Iterator[Tensor]:
        """All weights in order, `(branch, class, width)`, some branches at a time."""
        if self.static is not None:
            yield from self.static.split(size) if self.n_static else ()
        else:
            drawn = islice(self._draw(), self.n_static)
            while some := list(islice(drawn, size)):
                yield torch.stack(some).to(self.summed)
        if self.active is not None:
            yield from self.active.split(size)

    @property
    def orthogonality_error(self) -> float:
        """Largest entry of WW' - I over all branches; of W'W - I if classes outnumber features."""
        worst = 0.0
        for weights in self.chunks():
            w = weights.detach() if self.settings.classes <= self.width else weights.detach().mT
            worst = max(worst, float((w @ w.mT - torch.eye(w.shape[1]).to(w)).abs().max()))
        return worst

    def _draw(self) -> Iterator[Tensor]:
        s = self.settings
        return draw_branches(self.layer, s.seed, s.n, s.classes, self.width, s.init)

    def _custom_loss(self, features: Tensor, targets: Tensor, loss: BranchLoss) -> Tensor:
        total = features.new_zeros(())
        for weights in self.chunks():
            for weight in weights:
                part = loss(features @ weight.to(features).mT, targets)
                if part.dim():
                    raise ValueError(f"`loss`: expected a scalar, got shape {tuple(part.shape)}")
                total = total + part
        return total
