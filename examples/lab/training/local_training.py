"""Training a ResMLP by local credit, or by backprop, with the recipe of the credit audit."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

import nudging
from lab.backbones.resmlp import ResMLP
from lab.data.augment import augment_images
from lab.data.images import Images
from lab.training.local_objective import end_to_end_objective, local_objective, run_locally
from resonance_toolkit import track

# What makes the credit of each method; None for backprop, which needs none.
CREDITS: dict[str, Any] = {
    "BP": None,
    "DFA": nudging.direct_feedback,
    "FA": nudging.feedback,
    "SB": nudging.StateBridge,
    "CB": nudging.CreditBridge,
}
LEARNED = ("SB", "CB")

_EVALUATED = 2048  # test images in one pass


@dataclass(frozen=True)
class LocalRecipe:
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
class TrainedNetwork:
    """A network before and after training, the credit that trained it (None: BP), the curves."""

    initial: dict[str, Tensor]
    model: ResMLP
    credit: Any
    curves: xr.Dataset


@dataclass(frozen=True)
class _Teacher:
    """What gives a network its credit in one epoch.

    Attributes:
        credit: The rule that trains the blocks; None for backprop.
        learner: A bridge that learns along, whether or not it trains the blocks yet.
        normalise: Whether credit is divided by its root mean square.
    """

    credit: Any
    learner: Any
    normalise: bool


def train_locally(method: str, images: Images, *, seed: int, recipe: LocalRecipe) -> TrainedNetwork:
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

    make_credit = CREDITS[method]
    credit = make_credit(seed=seed, **recipe.credit) if make_credit else None
    learner = credit if method in LEARNED else None

    # While a Credit Bridge only learns, direct feedback trains the blocks.
    warm_up_credit = nudging.direct_feedback(seed=seed) if method == "CB" else credit

    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(free, recipe.lr, weight_decay=recipe.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs)
    generator = torch.Generator().manual_seed(seed)

    curves = []
    for epoch in track(range(recipe.epochs), f"{method}, seed {seed}", unit="epoch"):
        epoch_credit = warm_up_credit if epoch < recipe.warm_up * recipe.epochs else credit
        normalise = recipe.normalise
        if normalise is None:
            normalise = learner is not None and epoch_credit is learner
        teacher = _Teacher(epoch_credit, learner, normalise)

        means = np.zeros(2)
        order = torch.randperm(len(images.x_train), generator=generator)
        for rows in order.split(recipe.batch_size):
            x, y = images.x_train[rows], images.y_train[rows]
            if recipe.augment:
                x = augment_images(x, generator)

            loss, bridge_loss, objective = _compute_objective(model, x, y, teacher, recipe.penalty)
            optimizer.zero_grad()
            objective.backward()
            optimizer.step()
            means += np.array([loss.item(), bridge_loss]) * len(rows) / len(order)

        schedule.step()
        curves.append([*means, accuracy(model, images.x_test, images.y_test)])

    # Frozen blocks are measured like the others.
    return TrainedNetwork(initial, model.requires_grad_(), credit, _label_curves(np.array(curves)))


@torch.no_grad()
def accuracy(model: ResMLP, x: Tensor, y: Tensor) -> float:
    """Return the share of images that get their own label."""
    n_correct = 0
    for images, labels in zip(x.split(_EVALUATED), y.split(_EVALUATED), strict=True):
        n_correct += int((model(images).argmax(1) == labels).sum())
    return n_correct / len(x)


def _compute_objective(
    model: ResMLP, x: Tensor, y: Tensor, teacher: _Teacher, penalty: float
) -> tuple[Tensor, float, Tensor]:
    """Return cross-entropy, loss of the bridge (NaN without one), and what to minimise."""
    if teacher.credit is None:
        loss, objective = end_to_end_objective(model, x, y, penalty=penalty)
        return loss, float("nan"), objective

    step, parts = run_locally(model, x, y)
    bridge_loss = teacher.learner.update(step) if teacher.learner else float("nan")
    loss, objective = local_objective(
        step, parts, teacher.credit(step), penalty=penalty, normalise=teacher.normalise
    )
    return loss, bridge_loss, objective


def _label_curves(curves: np.ndarray) -> xr.Dataset:
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
