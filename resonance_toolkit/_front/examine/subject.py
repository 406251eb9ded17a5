"""What is examined: a model, its data, its loss, understood once for all parts."""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from resonance_toolkit import (
    AtMost,
    Batches,
    Blocks,
    Loss,
    call_loss,
    call_model,
    check_module,
    count_samples,
    devices_of,
    evaluating,
    find_blocks,
    find_layers,
    index_rows,
    is_sharded,
    is_whole_batch,
    name_of,
    preserving,
    preserving_rng,
    probes,
    take,
    unwrap,
)
from resonance_toolkit._front.examine.main_loss import MainLoss, choose_main_loss
from resonance_toolkit._front.examine.settings import Settings

# As many as the verbs draw by default.
MOST_SAMPLES = 500

# Samples that tell one set of data from another, and those on which the model is tried out.
_FEW_SAMPLES = 32
N_TRIED = 4


# Those of which targets between 0 and 1 are shares of classes, as the branches' own loss has them.
_LOSSES_OVER_CLASSES = {
    name_of(loss)
    for loss in (
        nn.functional.cross_entropy,
        nn.functional.binary_cross_entropy_with_logits,
        nn.functional.binary_cross_entropy,
        nn.functional.multilabel_soft_margin_loss,
        nn.CrossEntropyLoss(),
        nn.BCEWithLogitsLoss(),
        nn.BCELoss(),
        nn.MultiLabelSoftMarginLoss(),
    )
}


class CannotCopyError(ValueError):
    """A model of which no copy can be made, so that nothing can be trained."""


@dataclass(eq=False)
class Subject:
    """A model, its data and what they were understood as.

    Attributes:
        model: The user's, which nothing here may change.
        data: As the user gave them.
        settings: What was asked for.
        few: Some samples in one batch, of those that `data` give first.
        loss: The main loss.
        n_available: Samples that there are, of those that any part may draw.
        few_held_out: Some samples of those that the user holds out; empty if none are given.
        only_class: The only class among all that are drawn; None if there are several, or none.
    """

    model: nn.Module
    data: Any
    settings: Settings
    few: tuple[Any, Any]
    loss: MainLoss
    n_available: int
    few_held_out: Batches
    only_class: int | None = None
    _drawn: dict[int, Batches] = field(default_factory=dict)

    @property
    def layers(self) -> str | list[str] | None:
        """The layers as the user named them; None for those that are found."""
        layers = self.settings.layers
        return layers if layers is None or isinstance(layers, str) else list(layers)

    def count(self, samples: int) -> int:
        """How many are drawn if so many are wanted."""
        return min(samples, self.n_available)

    def first(self, samples: int) -> tuple[Any, Any]:
        """The first of the few samples, so many at most, in one batch."""
        inputs, targets = self.few
        rows = torch.arange(min(samples, count_samples(self.few)))
        return index_rows(inputs, rows), index_rows(targets, rows)

    def data_for(self, samples: int) -> dict[str, Any]:
        """The arguments by which a verb sees so many samples, those of `(data, samples, seed)`.

        A source is read once for each number, since reading may take longer than measuring.
        """
        seed = self.settings.seed
        if is_whole_batch(self.data):
            return {"data": self.data, "samples": samples, "seed": seed}
        if samples not in self._drawn:
            self._drawn[samples] = self.draw(samples)
        return {"data": self._drawn[samples], "samples": None, "seed": seed}

    def draw(self, samples: int, batch_size: int | None = None) -> Batches:
        """Draw samples by the seed, as every verb does."""
        return take(
            self.data,
            AtMost(samples),
            self.settings.seed,
            model=self.model,
            batch_size=batch_size,
            has_loss=self.settings.loss is not None,
        )

    def draw_held_out(self, samples: int) -> Batches:
        """Draw samples of those that the user holds out.

        Raises:
            TypeError, ValueError: If they are no data, or none of them has a target that counts.
        """
        try:
            drawn = take(
                self.settings.held_out,
                AtMost(samples),
                self.settings.seed,
                model=self.model,
                batch_size=None,
                has_loss=self.settings.loss is not None,
            )
        except (TypeError, ValueError) as error:
            sentence = str(error).replace("`data`", "`held_out`")
            raise type(error)(sentence) from error

        counted = self.loss.count_only(drawn)
        if not counted:
            raise ValueError("`held_out`: expected samples with targets, none of them counts")
        return counted

    def describe_targets(self, batch: tuple[Any, Any]) -> str:
        """Say what targets mean, of which a batch is an example."""
        meaning = self.loss.describe(self.model, batch)
        if self.only_class is not None:
            meaning += f"; only class {self.only_class} occurs in them"
        return meaning

    def copy_model(self) -> nn.Module:
        """Return a model of the same weights that may be trained.

        Raises:
            CannotCopyError: If there is no way to one.
        """
        root = unwrap(self.model)
        if is_sharded(root):
            raise CannotCopyError(
                "`model`: its weights are spread over processes; nothing can be trained on a copy"
            )
        try:
            model = copy.deepcopy(root)
        except Exception as error:  # whatever a foreign `__deepcopy__` or pickle raises
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotCopyError(
                f"`model`: cannot be deep-copied, so that nothing is trained: {first_line}"
            ) from error

        for parameter in model.parameters():
            parameter.grad = None
        return model

    def attach_branches(self, model: nn.Module, seed: int, *, listen_only: bool = False) -> Any:
        """Attach branches to the model, or to a copy of it, at the layers that were asked for."""
        settings = self.settings
        sample, _ = self.first(2)
        own_loss = self.branch_loss
        loss: dict[str, Any] = {}
        if own_loss is not None:
            # One number for all rows, whether the user's loss gives one or a number for each.
            loss["loss"] = lambda logits, y: torch.as_tensor(call_loss(own_loss, logits, y)).mean()
        if listen_only:
            return probes.attach(
                model, self.layers, listen_only=True, sample=sample, seed=seed, **loss
            )

        # An adaptive rule remembers what it saw: each run begins with its own.
        alpha = copy.deepcopy(settings.alpha)
        return probes.attach(
            model, self.layers, n=settings.n, alpha=alpha, sample=sample, seed=seed, **loss
        )

    @property
    def branch_loss(self) -> Loss | None:
        """The user's loss where targets are real numbers; None for the branches' own."""
        _, targets = self.few
        is_real = isinstance(targets, Tensor) and targets.is_floating_point()
        loss = self.settings.loss
        if loss is None or not is_real or self.loss.calls_model:
            return None
        return None if name_of(loss) in _LOSSES_OVER_CLASSES else loss

    def find_modules(self) -> tuple[dict[str, nn.Module], str]:
        """The layers by name, and why these."""
        if self.settings.layers is not None:
            return find_layers(self.model, self.settings.layers), "named in the call"
        blocks: Blocks = find_blocks(self.model)
        return dict(blocks), blocks.reason


def understand(model: nn.Module, data: Any, settings: Settings) -> Subject:
    """Check what the user gave, and draw a first few samples.

    Raises:
        TypeError, ValueError: If the model is none, layers do not exist, data give no samples, or
            targets ask for no loss.
    """
    check_module(model)
    if settings.layers is not None:
        find_layers(model, settings.layers)

    most = settings.samples or MOST_SAMPLES
    drawn = take(
        data,
        AtMost(most) if settings.samples is None else settings.samples,
        settings.seed,
        model=model,
        batch_size=None,
        has_loss=settings.loss is not None,
    )
    loss = choose_main_loss(settings.loss, drawn)
    drawn = loss.count_only(drawn)
    first_inputs, first_targets = drawn[0]
    rows = torch.arange(min(_FEW_SAMPLES, count_samples(drawn[0])))
    few = index_rows(first_inputs, rows), index_rows(first_targets, rows)
    n_available = sum(count_samples(batch) for batch in drawn)

    only_class = _find_only_class(drawn, loss)
    subject = Subject(model, data, settings, few, loss, n_available, [], only_class, {most: drawn})
    if isinstance(settings.alpha, Mapping):
        _check_alpha_by_layer(subject)
    if settings.holds_out_data:
        subject.few_held_out = subject.draw_held_out(_FEW_SAMPLES)
    return subject


def try_out(subject: Subject) -> None:
    """Run the model and its loss on a few samples, and leave no mark.

    Raises:
        Exception: Whatever the model or its loss raises.
    """
    model = subject.model
    with (
        preserving(model),
        preserving_rng(devices_of(model)),
        evaluating(model),
        torch.no_grad(),
    ):
        subject.loss.on_batch(model, subject.first(N_TRIED))


def identify(subject: Subject) -> dict[str, str]:
    """What must be the same for two runs to give the same tree, as digests and words."""
    tensors = [*subject.model.parameters(), *subject.model.buffers()]
    return {
        **subject.settings.describe(),
        "model": type(unwrap(subject.model)).__name__,
        "modules": _digest_of_words(
            f"{name} {type(module).__name__}" for name, module in subject.model.named_modules()
        ),
        "weights": _digest(tensors),
        "data": _digest(list(subject.few)),
        "held_out": _digest(subject.few_held_out),
        "n_available": str(subject.n_available),
    }


def output_shapes(subject: Subject, inputs: Any, modules: dict[str, nn.Module]) -> dict[str, str]:
    """The shapes of the first tensors that layers give for some inputs."""
    shapes: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            if tensors:
                shapes[name] = str(tuple(tensors[0].shape))

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in modules.items()]
    try:
        with preserving(subject.model), evaluating(subject.model), torch.no_grad():
            call_model(subject.model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _check_alpha_by_layer(subject: Subject) -> None:
    try:
        subject.attach_branches(subject.model, subject.settings.seed).detach()
    except (ValueError, TypeError) as error:
        # Whatever else is wrong with branches, the parts that need them say.
        if str(error).startswith("`alpha`"):
            raise


def _find_only_class(batches: Batches, loss: MainLoss) -> int | None:
    classes: set[int] = set()
    for _, targets in batches:
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            return None
        classes |= set(targets.unique().tolist()) - {loss.ignored}
    return int(classes.pop()) if len(classes) == 1 else None


def _digest_of_words(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def _digest(nest: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tree_leaves(nest):
        if isinstance(leaf, Tensor):
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
