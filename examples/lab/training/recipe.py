"""A recipe: everything that decides a training run, and nothing else."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import probes
from lab.backbones import asymmetric_paper as backbones
from lab.data import samples
from lab.data.images import Images, load

_COLOURED = ("resnet18", "resnet50", "vit_small", "vit_base")  # these take three channels


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, on what, how, and what to measure meanwhile. Defaults: the paper's CIFAR runs.

    The paper states neither optimizer, batch size nor augmentation there; AdamW, 128 and none are
    our reading (its grids of rates and decays, its CoAtNet, its accuracies).

    Attributes:
        backbone: A name in `lab.backbones.LAYERS`.
        data: As for `lab.data.images.load`.
        image: Resize images to this; None leaves them.
        per_class, test_per_class: Images of each class; None takes all.
        held_out: Share of the training images that stands in for the test set.
        label_noise: Probability that a training label is flipped.
        n: Branches at each layer; 0 for the plain model.
        alpha: Their strength; the fraction, where `strength` is "balance".
        strength: "constant"; "linear" or "cosine" (to 0 over the run); "balance" or "gate".
        layers: Where they are attached; "" for the paper's layers.
        loss, init, active, connected: As for `probes.attach`.
        schedule: Of the learning rate: "constant", "cosine" or "step" (a tenth at `milestones`).
        warm_up: Epochs of a linear rise.
        clip: Largest gradient norm; 0 for none.
        zero_head: Start from a zero last layer.
        trace_every: Updates between gradient measurements; 0 for none.
        attention_epochs: After which epochs attention is measured.
    """

    backbone: str = "mlp"
    data: str = "digits"
    image: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    held_out: float = 0.0
    label_noise: float = 0.0
    seed: int = 42
    n: int = 0
    alpha: float = 1.0
    strength: str = "constant"
    layers: str = ""
    loss: str = "bce"
    init: str = "orthogonal"
    active: int | str = 1
    connected: bool = True
    epochs: int = 200
    batch: int = 128
    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    schedule: str = "constant"
    milestones: tuple[int, ...] = ()
    warm_up: float = 0.0
    min_lr: float = 0.0
    label_smoothing: float = 0.0
    augment: bool = False
    clip: float = 0.0
    zero_head: bool = False
    trace_every: int = 0
    attention_epochs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.backbone not in backbones.LAYERS:
            known = ", ".join(backbones.LAYERS)
            raise ValueError(f"`backbone`: expected one of {known}, got {self.backbone!r}")
        known_names = {
            "optimizer": ("adamw", "sgd"),
            "schedule": ("constant", "cosine", "step"),
            "strength": ("constant", "linear", "cosine", "balance", "gate"),
        }
        for name, known_values in known_names.items():
            if getattr(self, name) not in known_values:
                raise ValueError(
                    f"`{name}`: expected one of {known_values}, got {getattr(self, name)!r}"
                )
        if self.epochs < 1 or self.batch < 1 or self.n < 0:
            raise ValueError(
                f"`epochs`, `batch`, `n`: got {self.epochs}, {self.batch}, {self.n}; expected at "
                "least 1, 1 and 0"
            )

    def images(self) -> Images:
        """The images that this recipe uses."""
        images = load(self.data)
        if self.held_out:
            images = samples.hold_out(images, self.held_out, seed=self.seed)
        images = samples.subset(images, self.per_class, self.test_per_class, seed=self.seed)
        images = samples.corrupt(images, self.label_noise, seed=self.seed)
        return samples.resize(images, self.image, 3 if self.backbone in _COLOURED else None)

    def model(self, images: Images, classes: int | None = None) -> nn.Module:
        """The backbone for these images, initialised by the global random state."""
        size, channels = images.image, images.channels
        shape: dict[str, Any] = {"image": size, "channels": channels}
        match self.backbone:
            case "mlp":
                shape = {"inputs": channels * size**2}
            case "cnn":
                shape = {"channels": channels}
            case "vit6":  # 8 x 8 patches, as on 32 x 32 images; 4 x 4 of the small digits
                shape["patch"] = max(size // 8, 2)
            case "resnet18" | "resnet50":
                shape = {}
            case "vit_small" | "vit_base":
                shape = {"image": size, "patch": 16 if size >= 64 else size // 2}
        model: nn.Module = getattr(backbones, self.backbone)(classes or images.classes, **shape)
        if self.zero_head:
            last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        return model

    def probe(self, model: nn.Module, sample: torch.Tensor, steps: int) -> probes.Probe | None:
        """The branches, attached; None for the plain model."""
        if not self.n:
            return None
        ramps = {"linear": probes.schedules.linear, "cosine": probes.schedules.cosine}
        rules = {"balance": probes.schedules.balance, "gate": probes.schedules.gate}
        alpha: Any = self.alpha
        if self.strength in ramps:
            alpha = ramps[self.strength](self.alpha, 0.0, steps=steps)
        elif self.strength in rules:
            alpha = rules[self.strength](self.alpha)
        where = self.layers or backbones.LAYERS[self.backbone]
        return probes.attach(
            model,
            where.split(","),
            self.n,
            alpha,
            loss=self.loss,
            init=self.init,
            active=self.active,  # type: ignore[arg-type]  # "all" or a number, checked there
            connected=self.connected,
            sample=sample,
            seed=self.seed,
        )

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW, or SGD with momentum 0.9."""
        decay = self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=decay)
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=decay)

    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs (a fraction of one counts).

        Examples:
            >>> recipe = Recipe(lr=1.0, schedule="cosine", warm_up=2, epochs=12, min_lr=0.1)
            >>> [round(recipe.rate(epoch), 3) for epoch in (0, 1, 2, 7, 12)]
            [0.0, 0.5, 1.0, 0.55, 0.1]
        """
        if epoch < self.warm_up:
            return self.lr * epoch / self.warm_up
        if self.schedule == "step":
            return self.lr * 0.1 ** sum(epoch >= m for m in self.milestones)
        if self.schedule == "cosine":
            done = (epoch - self.warm_up) / (self.epochs - self.warm_up)
            return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * done)) / 2
        return self.lr
