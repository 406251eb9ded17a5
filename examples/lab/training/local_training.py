"""Training a ResMLP by local credit, or by backprop, with the recipe of the credit audit."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor
from tqdm import trange

import nudging
from lab.backbones.resmlp import ResMLP
from lab.data.augment import augmented
from lab.data.images import Images
from lab.training.local_objective import end_to_end, forward, local

CREDITS: dict[str, Any] = {
    "BP": None,
    "DFA": nudging.direct_feedback,
    "FA": nudging.feedback,
    "SB": nudging.StateBridge,
    "CB": nudging.CreditBridge,
}


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the published ones, where they are known.

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images in one step.
        lr: AdamW's learning rate at the start; a cosine takes it to 0, epoch by epoch.
        weight_decay: AdamW's.
        penalty: Lambda of the scale penalty.
        normalise: Whether an image's credit is divided by its root mean square; None does so for
            learned bridges and not for fixed feedback.
        frozen: How many of the first blocks stay as they were initialised.
        warm_up: Part of the epochs in which a Credit Bridge only learns, while direct feedback
            trains the blocks.
        augment: Whether images are shifted and mirrored.
        width: Of the hidden states.
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
    width: int = 256
    credit: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trained:
    """A network before and after training, the credit that trained it (None: BP), the curves."""

    initial: dict[str, Tensor]
    model: ResMLP
    credit: Any
    curves: xr.Dataset


def train(method: str, images: Images, *, seed: int, recipe: Recipe) -> Trained:
    """Train one network by one method.

    Args:
        method: One of `CREDITS`.
        images: Standardised.
        seed: Decides the initial weights, the feedback and the order of the images.
        recipe: How to train.
    """
    torch.manual_seed(seed)
    model = ResMLP(images.classes, inputs=images.x_train[0].numel(), width=recipe.width)
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.blocks[: recipe.frozen].requires_grad_(False)
    credit = CREDITS[method] and CREDITS[method](seed=seed, **recipe.credit)
    early = nudging.direct_feedback(seed=seed) if method == "CB" else credit
    learner = credit if method in ("SB", "CB") else None
    free = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(free, recipe.lr, weight_decay=recipe.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    generator = torch.Generator().manual_seed(seed)
    curves = []
    for epoch in trange(recipe.epochs, desc=f"{method}, seed {seed}", disable=None):
        used = early if epoch < recipe.warm_up * recipe.epochs else credit
        normalise = learner is not None and used is learner
        normalise = normalise if recipe.normalise is None else recipe.normalise
        total = np.zeros(2)
        order = torch.randperm(len(images.x_train), generator=generator)
        for rows in order.split(recipe.batch_size):
            x, y = images.x_train[rows], images.y_train[rows]
            x = augmented(x, generator) if recipe.augment else x
            bridge = float("nan")
            if used is None:
                loss, objective = end_to_end(model, x, y, penalty=recipe.penalty)
            else:
                state, parts = forward(model, x, y)
                bridge = learner.update(state) if learner else bridge
                settings = {"penalty": recipe.penalty, "normalise": normalise}
                loss, objective = local(state, parts, used(state), **settings)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            total += np.array([loss.item(), bridge]) * len(rows) / len(order)
        schedule.step()
        curves.append([*total, accuracy(model, images.x_test, images.y_test)])
    return Trained(initial, model.requires_grad_(), credit, _dataset(np.array(curves)))


@torch.no_grad()
def accuracy(model: ResMLP, x: Tensor, y: Tensor) -> float:
    """Share of images that get their own label."""
    parts = zip(x.split(2048), y.split(2048), strict=True)
    return sum(int((model(a).argmax(1) == b).sum()) for a, b in parts) / len(x)


def _dataset(curves: np.ndarray) -> xr.Dataset:
    texts = {
        "train_loss": "mean training cross-entropy of the epoch",
        "bridge_loss": "mean loss of the bridge in the epoch",
        "test_accuracy": "test accuracy after the epoch",
    }
    variables = {
        name: ("epoch", column, {"long_name": text})
        for (name, text), column in zip(texts.items(), curves.T, strict=True)
    }
    label = {"long_name": "passes over the training images"}
    return xr.Dataset(variables, coords={"epoch": ("epoch", np.arange(1, len(curves) + 1), label)})
