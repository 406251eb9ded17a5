"""The main loss of a model on a batch, to train by and to measure with."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import (
    IGNORED_TARGET,
    Batches,
    DefaultLoss,
    Loss,
    align_predictions,
    call_loss,
    call_model,
    correct_shares,
    count_arguments,
    count_samples,
    default_loss,
    describe_targets,
    fit_class_loss,
    ignore_index_of,
    leave_out_uncounted,
    name_of,
    widest_float,
)


@dataclass(frozen=True)
class Measured:
    """Means over samples, and the same of each batch.

    Attributes:
        loss: Mean loss.
        accuracy: Share of right predictions; NaN without classes, and where the loss is not finite.
        losses: Of each batch.
        accuracies: Of each batch.
        n_samples: In each batch.
    """

    loss: float
    accuracy: float
    losses: list[float]
    accuracies: list[float]
    n_samples: list[int]


@dataclass(frozen=True, eq=False)
class MainLoss:
    """What the user gave, or what the targets ask for.

    Attributes:
        function: `(outputs, targets)`, one value per sample or their mean; or `(model, inputs,
            targets)`.
        calls_model: Whether it is of the second kind.
        name: What it is called.
        meaning: What targets were understood as.
        ignored: The target that does not count; None if nobody knows.
    """

    function: Any
    calls_model: bool
    name: str
    meaning: str
    ignored: int | None

    def on_batch(self, model: nn.Module, batch: tuple[Any, Any]) -> tuple[Tensor, Any]:
        """Run the model, and return the mean loss with its graph, and the model's outputs."""
        values, outputs = self._values_and_outputs(model, batch)
        return values.mean(), outputs

    def measure(self, model: nn.Module, batches: Batches) -> Measured:
        """Measure a model that is in the mode to be measured.

        The accuracy is NaN where there are no classes, as in `landscape.grid`.
        """
        losses: list[float] = []
        accuracies: list[float] = []
        n_samples: list[int] = []
        all_shares: list[Tensor] = []
        is_classification = True

        with torch.no_grad():
            for inputs, targets in batches:
                values, outputs = self._values_and_outputs(model, (inputs, targets))
                values = values.to(widest_float(values.device))
                losses.append(values.mean().item())
                n_samples.append(count_samples(inputs))

                ignored = IGNORED_TARGET if self.ignored is None else self.ignored
                shares = correct_shares(outputs, targets, ignored)
                if shares is None:
                    is_classification = False
                    accuracies.append(math.nan)
                else:
                    all_shares.append(shares.detach().cpu().double())
                    accuracies.append(all_shares[-1].nanmean().item())

        loss = sum(map(mul, losses, n_samples)) / sum(n_samples)
        accuracy = math.nan
        # Logits that are not finite have a largest one still, which is no answer.
        if is_classification and all_shares and math.isfinite(loss):
            accuracy = torch.cat(all_shares).nanmean().item()
        return Measured(loss, accuracy, losses, accuracies, n_samples)

    def count_only(self, batches: Batches) -> Batches:
        """Leave out samples without a target that counts."""
        return batches if self.ignored is None else leave_out_uncounted(batches, self.ignored)

    def describe(self, model: nn.Module, batch: tuple[Any, Any]) -> str:
        """Say what targets mean beside the inputs of a batch, and the model's outputs."""
        inputs, targets = batch
        meaning = self.meaning
        if isinstance(self.function, DefaultLoss):
            with torch.no_grad():
                meaning = self.function.settle_meaning(call_model(model, inputs), targets)
        return describe_targets(meaning, inputs, targets)

    def count_classes(self, model: nn.Module, batch: tuple[Any, Any]) -> int | None:
        """Return how many classes the model tells apart; None if it is no classification."""
        with torch.no_grad():
            _, outputs = self._values_and_outputs(model, batch)
        aligned = align_predictions(outputs, batch[1])
        return None if aligned is None else aligned[0].shape[1]

    def _values_and_outputs(self, model: nn.Module, batch: tuple[Any, Any]) -> tuple[Tensor, Any]:
        inputs, targets = batch
        if not self.calls_model:
            outputs = call_model(model, inputs)
            return torch.as_tensor(call_loss(self.function, outputs, targets)), outputs

        with _catching_outputs(model) as outputs_seen:
            values = torch.as_tensor(self.function(model, inputs, targets))
        return values, outputs_seen[-1] if outputs_seen else None


def choose_main_loss(loss: Loss | None, batches: Batches) -> MainLoss:
    """Return the user's loss, fitted to the targets, or the one that they ask for.

    Raises:
        ValueError: If targets ask for no loss, or are classes that no loss knows.
    """
    targets = [batch_targets for _, batch_targets in batches]
    if loss is None:
        function = default_loss(targets)
        return MainLoss(function, False, name_of(function), function.meaning, IGNORED_TARGET)

    if count_arguments(loss) == 3:
        return MainLoss(loss, True, name_of(loss), "given to the loss", None)
    ignored = ignore_index_of(loss)
    fitted_loss = fit_class_loss(loss, targets)
    return MainLoss(fitted_loss, False, name_of(loss), "given to the loss", ignored)


@contextmanager
def _catching_outputs(model: nn.Module) -> Iterator[list[Any]]:
    outputs_seen: list[Any] = []
    handle = model.register_forward_hook(
        lambda _module, _args, outputs: outputs_seen.append(outputs)
    )
    try:
        yield outputs_seen
    finally:
        handle.remove()
