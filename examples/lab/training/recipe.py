"""A recipe: everything that decides a training run, and nothing else."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

import probes
from lab.backbones.asymmetric_paper import LAYERS
from lab.backbones.build import COLOUR_ONLY, build_backbone
from lab.data import samples
from lab.data.images import Images, load
from resonance_toolkit import check_choice

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["constant", "cosine", "step"]
Strength = Literal["constant", "linear", "cosine", "balance", "gate"]
BranchLoss = Literal["bce", "ce"]
BranchInit = Literal["orthogonal", "normal", "default"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, on what, how, and what to measure meanwhile. Defaults: the paper's CIFAR runs.

    The paper states neither optimizer, batch size nor augmentation there; AdamW, 128 and none are
    our reading (its grids of rates and decays, its CoAtNet, its accuracies).

    Besides these settings a recipe has no state: its methods make the parts of a run from them.

    Attributes:
        backbone: A name in `lab.backbones.asymmetric_paper.LAYERS`.
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
        static_labels: Whether static branches see the labels. If not, their loss is that of no
            class at all, the mean of softplus(logit): what is left of them is a pull along a fixed
            direction and a penalty on the features.
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
    strength: Strength = "constant"
    layers: str = ""
    loss: BranchLoss = "bce"
    init: BranchInit = "orthogonal"
    active: int | Literal["all"] = 1
    connected: bool = True
    static_labels: bool = True
    epochs: int = 200
    batch: int = 128
    optimizer: Optimizer = "adamw"
    lr: float = 1e-3
    weight_decay: float = 1e-2
    schedule: Schedule = "constant"
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
        check_choice("backbone", self.backbone, LAYERS)
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("strength", self.strength, get_args(Strength))

        if self.epochs < 1 or self.batch < 1 or self.n < 0:
            raise ValueError(
                f"`epochs`, `batch`, `n`: got {self.epochs}, {self.batch}, {self.n}; expected at "
                "least 1, 1 and 0"
            )

        # The two kinds of branches are then two probes, and a rule that adapts the strength to the
        # auxiliary loss would see only one of them.
        if not self.static_labels and (self.active != 1 or self.strength in ("balance", "gate")):
            raise ValueError(
                f"`static_labels`: False needs one active branch and a strength that does not "
                f"adapt, got {self.active!r} and {self.strength!r}"
            )

    def images(self) -> Images:
        """Load the images that this recipe uses."""
        images = load(self.data)

        # Held out before anything else, so that a search never sees the test images.
        if self.held_out:
            images = samples.hold_out(images, self.held_out, seed=self.seed)
        images = samples.subset(images, self.per_class, self.test_per_class, seed=self.seed)
        images = samples.corrupt(images, self.label_noise, seed=self.seed)

        channels = 3 if self.backbone in COLOUR_ONLY else None
        return samples.resize(images, self.image, channels)

    def model(self, images: Images, classes: int | None = None) -> nn.Module:
        """Build the backbone for these images, initialised by the global random state."""
        model = build_backbone(
            self.backbone,
            classes or images.classes,
            image=images.image,
            channels=images.channels,
        )

        if self.zero_head:
            head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        return model

    def probe(self, model: nn.Module, sample: torch.Tensor, steps: int) -> probes.Probe | None:
        """Attach the branches; None for the plain model.

        Args:
            model: From `model`.
            sample: Some images, to find the shapes at the layers.
            steps: Updates of the whole run, over which a strength may fall to 0.
        """
        if not self.n:
            return None

        n_labelled = self.n if self.static_labels else 1
        return self._attach(model, sample, steps, n=n_labelled, active=self.active)

    def unlabelled_probe(
        self, model: nn.Module, sample: torch.Tensor, steps: int
    ) -> probes.Probe | None:
        """Attach static branches that never see a label; None where they all do.

        Takes what `probe` takes. Their loss is `probe.loss` of targets that are all zero.
        """
        if self.static_labels or self.n < 2:
            return None

        return self._attach(model, sample, steps, n=self.n - 1, active=0)

    def _attach(
        self, model: nn.Module, sample: torch.Tensor, steps: int, *, n: int, active: Any
    ) -> probes.Probe:
        patterns = (self.layers or LAYERS[self.backbone]).split(",")
        return probes.attach(
            model,
            patterns,
            n,
            self._alpha_schedule(steps),
            loss=self.loss,
            init=self.init,
            active=active,
            connected=self.connected,
            sample=sample,
            seed=self.seed,
        )

    def _alpha_schedule(self, steps: int) -> Any:
        match self.strength:
            case "constant":
                return self.alpha
            case "linear":
                return probes.schedules.linear(self.alpha, 0.0, steps=steps)
            case "cosine":
                return probes.schedules.cosine(self.alpha, 0.0, steps=steps)
            case "balance":
                return probes.schedules.balance(self.alpha)
            case "gate":
                return probes.schedules.gate(self.alpha)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Make AdamW, or SGD with momentum 0.9."""
        decay = self.weight_decay
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9, weight_decay=decay)
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=decay)

    def rate(self, epoch: float) -> float:
        """Return the learning rate after so many epochs (a fraction of one counts).

        Examples:
            >>> recipe = Recipe(lr=1.0, schedule="cosine", warm_up=2, epochs=12, min_lr=0.1)
            >>> [round(recipe.rate(epoch), 3) for epoch in (0, 1, 2, 7, 12)]
            [0.0, 0.5, 1.0, 0.55, 0.1]
        """
        if epoch < self.warm_up:
            return self.lr * epoch / self.warm_up

        if self.schedule == "step":
            n_passed = sum(epoch >= milestone for milestone in self.milestones)
            return self.lr * 0.1**n_passed

        if self.schedule == "cosine":
            progress = (epoch - self.warm_up) / (self.epochs - self.warm_up)
            return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * progress)) / 2

        return self.lr
