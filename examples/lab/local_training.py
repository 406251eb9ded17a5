"""Training a ResMLP by local credit: every block learns from its own credit, none from the next.

With hidden states h_0 (embedding) ... h_L and credits a_0 ... a_L, block l minimises the mean over
the batch of `<f_l(h_l), a_l> + penalty * |f_l(h_l)|^2`, where f_l is its residual branch and both h_l
and a_l are constants; the embedding minimises `<h_0, a_0>`; norm and head the cross-entropy. All
parameters share one AdamW. Backprop, for comparison, minimises the cross-entropy plus the penalties
end to end.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import xarray as xr
from torch import Tensor
from tqdm import trange

import nudging
from lab.data import Images
from lab.resmlp import ResMLP

METHODS = {"BP": None, "DFA": nudging.direct_feedback, "FA": nudging.feedback}
METHODS |= {"SB": nudging.StateBridge, "CB": nudging.CreditBridge}


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the published ones, where they are known.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images in one step.
        lr: AdamW's learning rate at the start; a cosine takes it to 0, epoch by epoch.
        weight_decay: AdamW's.
        penalty: Lambda; the squared norm of a branch is summed over features.
        normalise: Whether a credit is divided by its root mean square, image by image; None does
            so for learned bridges and not for fixed feedback.
        frozen: How many of the first blocks stay as they were initialised.
        warm_up: Part of the epochs in which a Credit Bridge only learns, while direct feedback
            trains the blocks.
        augment: Whether images are shifted (by up to 4 pixels, an eighth) and mirrored.
        credit: Settings of the credit, beside its seed.
    """

    epochs: int = 30
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.01
    penalty: float = 1e-2
    normalise: bool | None = None
    frozen: int = 0
    warm_up: float = 0.2
    augment: bool = True
    credit: dict[str, Any] | None = None


@dataclass(frozen=True)
class Trained:
    """A trained network, the credit it was trained by (None for BP), and its curves."""

    model: ResMLP
    credit: Any
    curves: xr.Dataset


class Step(nudging.State):
    """The state of the training step itself: no second forward pass, and the readout called as is."""

    def rest(self, block: str, value: Tensor) -> Tensor:
        """The logits for another terminal state."""
        if block != self.blocks[-1]:
            return super().rest(block, value)
        logits: Tensor = self.model.head(self.model.norm(value))
        return logits


def train(method: str, images: Images, *, seed: int, recipe: Recipe, width: int = 256) -> Trained:
    """Train one network by one method.

    Args:
        method: One of `METHODS`.
        images: Standardised.
        seed: Decides the initial weights, the feedback and the order of the images.
        recipe: How to train.
        width: Of the hidden states.
    """
    torch.manual_seed(seed)
    model = ResMLP(images.classes, inputs=images.x_train[0].numel(), width=width)
    for block in model.blocks[: recipe.frozen]:
        block.requires_grad_(False)
    make = METHODS[method]
    credit = make and make(seed=seed, **(recipe.credit or {}))
    early = nudging.direct_feedback(seed=seed) if method == "CB" else credit
    learns = isinstance(credit, nudging.StateBridge | nudging.CreditBridge)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, recipe.lr, weight_decay=recipe.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    generator = torch.Generator().manual_seed(seed)
    curves: dict[str, list[float]] = {"loss": [], "accuracy": [], "bridge_loss": []}
    for epoch in trange(recipe.epochs, desc=f"{method}, seed {seed}", disable=None):
        used = early if epoch < recipe.warm_up * recipe.epochs else credit
        normalise = used is credit and learns if recipe.normalise is None else recipe.normalise
        total, bridge = 0.0, 0.0
        for rows in torch.randperm(len(images.x_train), generator=generator).split(
            recipe.batch_size
        ):
            x, y = images.x_train[rows], images.y_train[rows]
            x = augmented(x, generator) if recipe.augment else x
            if used is None:
                loss, objective = end_to_end(model, x, y, recipe.penalty)
            else:
                state, parts = forward(model, x, y)
                if learns:
                    bridge += credit.update(state) * len(rows)
                loss, objective = local(model, state, parts, used(state), recipe, normalise)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        schedule.step()
        count = len(images.x_train)
        curves["loss"].append(total / count)
        curves["bridge_loss"].append(bridge / count if learns else float("nan"))
        curves["accuracy"].append(accuracy(model, images.x_test, images.y_test))
    return Trained(model.requires_grad_(), credit, _dataset(curves))


def forward(model: ResMLP, x: Tensor, y: Tensor) -> tuple[Step, list[Tensor]]:
    """One pass in which no gradient crosses a block; gives embedding and branches."""
    parts = [model.embed(x.flatten(1))]
    states = [parts[0].detach()]
    for block in model.blocks:
        parts.append(block.branch(states[-1]))
        branch = parts[-1].detach()
        states.append(states[-1] + branch if block.skip else branch)
    with torch.no_grad():
        outputs = model.head(model.norm(states[-1]))
    names = ("embed", *(f"blocks.{i}" for i in range(len(model.blocks))))
    hidden = dict(zip(names, states, strict=True))
    return Step(model, names, x, y, hidden, outputs, _cross_entropy, ""), parts


def local(
    model: ResMLP,
    state: Step,
    parts: list[Tensor],
    credit: dict[str, Tensor],
    recipe: Recipe,
    normalise: bool,
) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and the sum of all local objectives: credit l trains block l, 0 the embedding."""
    credits = [credit[name] for name in state.blocks]
    if normalise:
        credits = [a / (a.square().mean(1, keepdim=True).sqrt() + 1e-6) for a in credits]
    terminal = state.hidden[state.blocks[-1]]
    loss = F.cross_entropy(model.head(model.norm(terminal)), state.targets)
    pairs = zip(parts, [credits[0], *credits], strict=False)
    objective = loss + sum((part * a).sum(1).mean() for part, a in pairs)
    return loss.detach(), objective + recipe.penalty * _size(parts[1:])


def end_to_end(model: ResMLP, x: Tensor, y: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy, and cross-entropy plus penalties, for backprop."""
    h, parts = model.embed(x.flatten(1)), []
    for block in model.blocks:
        parts.append(block.branch(h))
        h = h + parts[-1] if block.skip else parts[-1]
    loss = F.cross_entropy(model.head(model.norm(h)), y)
    return loss.detach(), loss + penalty * _size(parts)


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images shifted by up to an eighth, black where nothing was, and mirrored, all in one gather."""
    count, channels, size, _ = x.shape
    margin = size // 8
    wide = size + 2 * margin
    padded = x.new_empty(count, channels, wide, wide)
    padded.copy_(x.amin((0, 2, 3))[:, None, None].expand_as(padded))
    padded[:, :, margin:-margin, margin:-margin] = x
    down, across = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    columns = across + torch.arange(size)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    rows = down + torch.arange(size)
    where = (rows[:, :, None] * wide + columns[:, None]).view(count, 1, -1).to(x.device)
    return padded.flatten(2).gather(2, where.expand(-1, channels, -1))


@torch.no_grad()
def accuracy(model: ResMLP, x: Tensor, y: Tensor) -> float:
    """Share of images that get their own label."""
    hits = [
        (model(a).argmax(1) == b).sum() for a, b in zip(x.split(2048), y.split(2048), strict=True)
    ]
    return float(sum(hits)) / len(x)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def _size(branches: list[Tensor]) -> Tensor:
    return torch.stack([branch.square().sum(1).mean() for branch in branches]).sum()


def _dataset(curves: dict[str, list[float]]) -> xr.Dataset:
    names = {
        "loss": ("mean training cross-entropy of the epoch", "nat"),
        "accuracy": ("test accuracy", "1"),
        "bridge_loss": ("mean loss of the bridge", "1"),
    }
    variables = {
        name: ("epoch", np.array(curves[name]), {"long_name": text, "units": units})
        for name, (text, units) in names.items()
    }
    epochs = np.arange(1, len(curves["loss"]) + 1)
    label = {"long_name": "passes over the training images"}
    return xr.Dataset(variables, coords={"epoch": ("epoch", epochs, label)})
