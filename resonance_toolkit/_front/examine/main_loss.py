"""The main loss of a model on a batch, to train by and to measure with."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import (
    IGNORED_TARGET,
    Batches,
    DefaultLoss,
    Loss,
    call_loss,
    call_model,
    correct_shares,
    count_samples,
    default_loss,
    describe_targets,
    fit_class_loss,
    ignore_index_of,
    leave_out_uncounted,
    name_of,
    widest_float,
)


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

    def measure(self, model: nn.Module, batches: Batches) -> tuple[float, float]:
        """Mean loss and accuracy over samples, of a model that is in the mode to be measured.

        The accuracy is NaN where there are no classes, as in `landscape.grid`.
        """
        total_loss = 0.0
        n_samples = 0
        shares: list[Tensor] = []
        is_classification = True

        with torch.no_grad():
            for inputs, targets in batches:
                values, outputs = self._values_and_outputs(model, (inputs, targets))
                n_in_batch = count_samples(inputs)
                values = values.to(widest_float(values.device))
                total_loss += values.mean().item() * n_in_batch
                n_samples += n_in_batch

                ignored = IGNORED_TARGET if self.ignored is None else self.ignored
                batch_shares = correct_shares(outputs, targets, ignored)
                if batch_shares is None:
                    is_classification = False
                else:
                    shares.append(batch_shares.detach().cpu().double())

        accuracy = float("nan")
        if is_classification and shares:
            accuracy = torch.cat(shares).nanmean().item()
        return total_loss / n_samples, accuracy

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
        chosen = default_loss(targets)
        return MainLoss(chosen, False, name_of(chosen), chosen.meaning, IGNORED_TARGET)

    if _count_arguments(loss) == 3:
        return MainLoss(loss, True, name_of(loss), "given to the loss", None)
    ignored = ignore_index_of(loss)
    fitted = fit_class_loss(loss, targets)
    return MainLoss(fitted, False, name_of(loss), "given to the loss", ignored)


def _count_arguments(loss: Any) -> int | None:
    """How many arguments a loss must have; None for a builtin that does not tell."""
    function = loss.forward if isinstance(loss, nn.Module) else loss
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


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
