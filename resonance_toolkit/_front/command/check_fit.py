"""Whether model, data and loss go together: tried on a few samples before minutes of work."""

import difflib
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from resonance_toolkit import (
    AtMost,
    call_loss,
    call_model,
    check_no_nan,
    default_loss,
    evaluating,
    index_rows,
    logits_of,
    preserving_rng,
    take,
)
from resonance_toolkit._front.command.mistake import Mistake, first_line

Loss = Callable[[Any, Any], Tensor]

# Where a sentence turns to how batches are put together in Python, which files leave no room for.
_PYTHON_ADVICE = ". Samples come first: "


def find_loss(name: str) -> Loss:
    """Find a loss of `torch.nn.functional` by name.

    Raises:
        Mistake: If there is none.

    Examples:
        >>> find_loss("mse_loss").__name__
        'mse_loss'
    """
    names = [key for key in dir(F) if _is_loss(key)]
    if name not in names:
        # `mse` is short for mse_loss.
        similar = [key for key in names if key.startswith(f"{name}_")]
        similar += difflib.get_close_matches(name, names, n=3)
        raise Mistake(
            f"--loss: torch.nn.functional has no loss {name!r}; expected one such as "
            f"{', '.join((similar or names)[:10])}"
        )
    loss: Loss = getattr(F, name)
    return loss


def check_fit(model: nn.Module, data: Any, loss: Loss | None, *, samples: int) -> Loss | None:
    """Call the model and its loss on a few samples.

    Args:
        model: Left as it was.
        data: What the verbs will be given.
        loss: The one that was asked for; None for the one that the targets ask for.
        samples: How many are looked at, at most.

    Returns:
        The loss for the verbs: for a model that returns an object, one that takes its logits.

    Raises:
        Mistake: If they do not go together.
    """
    with evaluating(model), preserving_rng(), torch.no_grad():
        try:
            batches = take(data, AtMost(samples), model=model, has_loss=loss is not None)
            check_no_nan(batches)
            expected_loss = default_loss(y for _, y in batches) if loss is None else loss

            inputs, targets = batches[0]
            rows = torch.arange(2)[: len(targets)]
            targets = index_rows(targets, rows)
            outputs = call_model(model, index_rows(inputs, rows))
        except (ValueError, TypeError) as error:
            raise Mistake(translate_error(error)) from error
        except Mistake:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {first_line(error)}"
            raise Mistake(f"MODEL: its forward pass fails on DATA: {words}") from error

        if loss is not None and not isinstance(outputs, Tensor):
            loss = expected_loss = OfLogits(loss)
        _try_loss(expected_loss, outputs, targets)
    return loss


class OfLogits:
    """A loss of the logits inside what a model returns."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.__name__ = getattr(loss, "__name__", "loss")

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return the mean over the batch."""
        return self.loss(logits_of(outputs), targets)


def translate_error(error: Exception) -> str:
    """Say an error of a verb in the words of the command line.

    Examples:
        >>> translate_error(ValueError("`n`: expected a whole number of at least 1, got 0"))
        '--n: expected a whole number of at least 1, got 0'
        >>> translate_error(ValueError("`data`: give a loss=torch.nn.functional.mse_loss"))
        '--data: give a --loss mse_loss'
        >>> translate_error(ValueError("`data`: the pass failed. Samples come first: (x, y)"))
        '--data: the pass failed'
    """
    sentence = first_line(error).replace("loss=torch.nn.functional.", "--loss ")
    sentence = sentence.partition(_PYTHON_ADVICE)[0]
    argument, separator, complaint = sentence.removeprefix("`").partition("`")
    if not (sentence.startswith("`") and separator):
        return sentence
    name = "MODEL" if argument == "model" else f"--{argument.replace('_', '-')}"
    return f"{name}{complaint}"


def _try_loss(loss: Loss, outputs: Any, targets: Any) -> None:
    try:
        with warnings.catch_warnings():
            # Unequal shapes are broadcast, with a warning: every sample with every target.
            warnings.filterwarnings("error", message="Using a target size")
            call_loss(loss, outputs, targets)
    except UserWarning as warning:
        is_column = logits_of(outputs).shape == (*targets.shape, 1)
        cure = "; save targets as a column, y[:, None]" if is_column else ""
        raise Mistake(
            f"--loss: outputs {_describe_shape(outputs)} and targets {_describe_shape(targets)} "
            f"have unequal shapes{cure}"
        ) from warning
    except (ValueError, TypeError) as error:
        raise Mistake(translate_error(error)) from error


def _describe_shape(value: Any) -> str:
    return str(tuple(logits_of(value).shape))


def _is_loss(name: str) -> bool:
    return not name.startswith("_") and ("_loss" in name or "entropy" in name or name == "kl_div")
