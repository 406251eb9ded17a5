"""The branches of one attachment point: how they are drawn, kept, and give their loss."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probes._branches.closed_form_loss import compressed_loss, orthogonal_excess
from probes._branches.exact_loss import exact_loss
from probes._branches.potentials import LossName
from resonance_toolkit import preserving_rng, to_host

# Called as `loss(logits, targets)` with the logits `(row, class)` of one branch.
BranchLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

# Called as `init(weight, generator)`: fills `weight (class, width)` from the generator, in place.
Init: TypeAlias = Callable[[Tensor, torch.Generator], object]

InitName = Literal["orthogonal", "normal", "default"]
Method = Literal["exact", "compressed"]

# Branches are drawn in float64, so that sums over them are exact in the model's precision, and on
# the CPU, whatever the default device, so that every device and rank has the same.
_DRAWN: Any = {"dtype": torch.float64, "device": "cpu"}


def orthogonal(weight: Tensor, generator: torch.Generator) -> None:
    """Orthonormal rows; orthonormal columns where there are more classes than features."""
    nn.init.orthogonal_(weight, generator=generator)


def normal(weight: Tensor, generator: torch.Generator) -> None:
    """Gaussian entries of the variance that orthogonal ones have."""
    nn.init.normal_(weight, std=1 / math.sqrt(max(weight.shape)), generator=generator)


def default(weight: Tensor, generator: torch.Generator) -> None:
    """What `nn.Linear` starts from."""
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


INITS: dict[InitName, Init] = {"orthogonal": orthogonal, "normal": normal, "default": default}


@dataclass(frozen=True)
class Settings:
    """What all attachment points of a probe have in common."""

    n: int
    active: int
    classes: int
    loss: LossName | BranchLoss
    init: Init
    method: Method
    seed: int
    listen_only: bool = False

    @property
    def n_static(self) -> int:
        """How many branches of a layer keep the weights that they were drawn with."""
        return self.n - self.active


class Branches(nn.Module):
    """The branches of one attachment point: static ones first, active ones last.

    Method `"exact"` keeps the static weights, `static (branch, class, width)`; `"compressed"` keeps
    their second moment `gram (width, width)` instead and draws them again when they are needed.
    Both keep `summed (class, width)`, the static weights' sum.

    Branches that only listen have a bias, 0 at first: their weights have a last column for it, and
    `as_inputs` gives the features a last 1. Those that send gradients have none, so that what a
    layer gets comes through its features alone.

    Attributes:
        stacked_tensors: Which tensors hold one weight of each branch, for whatever counts or scales
            tensors: see `resonance_toolkit.is_stack`.
    """

    stacked_tensors = ("static", "active")

    static: Tensor | None
    gram: Tensor | None
    summed: Tensor
    active: nn.Parameter | None

    def __init__(self, layer: str, width: int, settings: Settings, template: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.width = width
        self.settings = settings
        self.n_static = settings.n_static

        # Logits of half-precision models are made in float32: sigmoid losses need it.
        placement = template.to(torch.promote_types(template.dtype, torch.float32))

        drawn_weights = self._draw()
        static_weights = islice(drawn_weights, self.n_static)
        if settings.method == "compressed":
            self._keep_moments(static_weights, placement)
        else:
            self._keep_weights(static_weights, placement)

        active_weights = list(drawn_weights)
        has_active = len(active_weights) > 0
        self.active = (
            nn.Parameter(torch.stack(active_weights).to(placement)) if has_active else None
        )

    @property
    def n_parameters(self) -> int:
        """All weights, static ones included whether they are stored or not."""
        return self.settings.n * self.settings.classes * self.n_inputs

    @property
    def n_inputs(self) -> int:
        """The features, and a 1 for the bias of branches that only listen."""
        return self.width + int(self.settings.listen_only)

    @property
    def excess(self) -> float:
        """Excess kurtosis of a logit over the branches, for the closed form."""
        if self.settings.init is orthogonal:
            return orthogonal_excess(self.settings.classes, self.width)
        return 0.0

    @property
    def precision(self) -> torch.dtype:
        """What losses are computed in, though the weights may have been made half."""
        return torch.promote_types(self.summed.dtype, torch.float32)

    @property
    def orthogonality_error(self) -> float:
        """Largest entry of WW' - I over all branches; of W'W - I if classes outnumber features."""
        largest_errors = []

        for weights in self.chunks():
            has_more_features = self.settings.classes <= self.width
            w = weights.detach()[..., : self.width]  # a bias is not a direction
            w = w if has_more_features else w.mT

            identity = torch.eye(w.shape[1], dtype=w.dtype, device=w.device)
            largest_errors.append((w @ w.mT - identity).abs().max())
        return max((error.item() for error in to_host(largest_errors)), default=0.0)

    def as_inputs(self, features: Tensor) -> Tensor:
        """Add the 1 that a bias needs to `features (row, width)`, if there is a bias."""
        return F.pad(features, (0, 1), value=1.0) if self.settings.listen_only else features

    def loss(self, features: Tensor, targets: Tensor) -> Tensor:
        """Sum over the branches of their mean losses on inputs `(row, width)`."""
        loss = self.settings.loss
        if not isinstance(loss, str):
            return self._custom_loss(features, targets, loss)

        total = features.new_zeros(())
        summed = self.summed.to(features)
        if self.gram is not None:
            gram = self.gram.to(features)
            total = compressed_loss(features, gram, summed, targets, self.n_static, self.excess)
        elif self.static is not None and self.n_static:
            total = exact_loss(features, self.static.to(features), summed, targets, loss)

        if self.active is not None:
            active = self.active.to(features)
            total = total + exact_loss(features, active, active.sum(0), targets, loss)
        return total

    def chunks(self, size: int = 16) -> Iterator[Tensor]:
        """Yield all weights in order, `(branch, class, width)`, some branches at a time."""
        yield from self.static_chunks(size)
        if self.active is not None:
            yield from self.active.split(size)

    def static_chunks(self, size: int = 16) -> Iterator[Tensor]:
        """Yield the static weights in order, `(branch, class, width)`, some at a time."""
        if self.n_static == 0:
            return

        if self.static is not None:
            yield from self.static.split(size)
            return

        drawn_weights = islice(self._draw(), self.n_static)
        while chunk := list(islice(drawn_weights, size)):
            yield torch.stack(chunk).to(self.summed)

    def _keep_moments(self, static_weights: Iterator[Tensor], placement: Tensor) -> None:
        gram = torch.zeros(self.width, self.width, **_DRAWN)
        summed = torch.zeros(self.settings.classes, self.width, **_DRAWN)
        for weight in static_weights:
            gram += weight.mT @ weight
            summed += weight

        self.register_buffer("static", None)
        self.register_buffer("gram", gram.to(placement))
        self.register_buffer("summed", summed.to(placement))

    def _keep_weights(self, static_weights: Iterator[Tensor], placement: Tensor) -> None:
        shape = (self.n_static, self.settings.classes, self.n_inputs)
        stack = torch.empty(shape, dtype=placement.dtype, device="cpu")
        summed = torch.zeros(self.settings.classes, self.n_inputs, **_DRAWN)

        for index, weight in enumerate(static_weights):
            stack[index] = weight
            summed += stack[index]  # as rounded, so that the sum is that of the weights kept

        self.register_buffer("static", stack.to(placement))
        self.register_buffer("gram", None)
        self.register_buffer("summed", summed.to(placement))

    def _draw(self) -> Iterator[Tensor]:
        """Draw the weights of all branches one by one, `(class, width)` each, with 0 for a bias.

        Keyed by seed and layer name: the same whatever other layers are attached; and the first
        branches are the same for every number of them.
        """
        settings = self.settings
        key = hashlib.sha256(f"{settings.seed}:{self.layer}".encode()).digest()
        layer_seed = int.from_bytes(key[:8], "big") % 2**63
        generator = torch.Generator("cpu").manual_seed(layer_seed)

        for _ in range(settings.n):
            weight = torch.empty(settings.classes, self.width, **_DRAWN)
            with preserving_rng(), torch.device("cpu"):  # a callable may draw from the global one
                settings.init(weight, generator)
            yield F.pad(weight, (0, self.n_inputs - self.width))

    def _custom_loss(self, features: Tensor, targets: Tensor, loss: BranchLoss) -> Tensor:
        total = features.new_zeros(())

        for weights in self.chunks():
            for weight in weights:
                branch_loss = loss(features @ weight.to(features).mT, targets)
                if branch_loss.dim():
                    shape = tuple(branch_loss.shape)
                    raise ValueError(f"`loss`: expected a scalar, got shape {shape}")
                total = total + branch_loss
        return total
