"""Checks of what the verbs of this package are given."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal, TypeAlias

import torch.distributed as dist
import xarray as xr
from torch import Tensor, nn

from resonance_toolkit import check_choice, is_sharded

Level: TypeAlias = Literal["parameter", "activation"]
Group: TypeAlias = dist.ProcessGroup | Literal["auto"] | None


def check_level(level: str, layers: str | Sequence[str] | None, separate: bool | None) -> None:
    """Raise a ValueError unless level, layers and separate passes go together."""
    check_choice("level", level, ("parameter", "activation"))

    if (layers is None) != (level == "parameter"):
        expected = "names of layers" if layers is None else "None; `regroup` chooses afterwards"
        raise ValueError(f"`layers`: expected {expected} with level={level!r}, got {layers!r}")

    if level == "activation" and separate is not None:
        raise ValueError(
            "`separate`: expected None with level='activation', where one pass carries all losses, "
            f"got {separate!r}; use level='parameter'"
        )


def check_noise(noise: object) -> None:
    """Raise a TypeError unless it is a bool."""
    if not isinstance(noise, bool):
        raise TypeError(f"`noise`: expected True or False, got {noise!r}")


def check_confidence(confidence: float) -> None:
    """Raise a ValueError unless it is a share between 0 and 1."""
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise ValueError(f"`confidence`: expected a number between 0 and 1, got {confidence!r}")


def check_scaler(scaler: object) -> None:
    """Raise a TypeError unless it can scale a loss."""
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise TypeError(f"`scaler`: expected a GradScaler or None, got {type(scaler).__name__}")


def check_group(group: object) -> None:
    """Raise a TypeError unless it says over which processes to average."""
    if group is not None and group != "auto" and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"`group`: expected 'auto', None or a ProcessGroup, got {group!r}")


def check_unsharded(model: nn.Module, *, hint: str = "") -> None:
    """Raise a ValueError if the parameters of a model are spread over processes."""
    if is_sharded(model):
        raise ValueError(f"`model`: expected a module that is not sharded{hint}")


def check_losses(losses: Sequence[Tensor], names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the names of the losses.

    Raises:
        ValueError: If the losses are not scalars, or not as many as their names.
    """
    names = names or default_names(len(losses))

    if not losses or len(losses) != len(names):
        expected = f"{len(names)} ({', '.join(names)})" if losses else "at least one"
        raise ValueError(f"losses: expected {expected}, got {len(losses)}")

    for name, loss in zip(names, losses, strict=True):
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"losses: {name!r}: expected a scalar tensor, got {kind}")

    return names


def check_dependence(losses: Sequence[Tensor], names: Sequence[str]) -> None:
    """Refuse a loss that has no graph, and so no gradient.

    A constant zero beside the first loss is let through: so is a probe's that is not connected.

    Raises:
        ValueError: If there is one.
    """
    for index, (name, loss) in enumerate(zip(names, losses, strict=True)):
        if loss.requires_grad or (index > 0 and loss.item() == 0):
            continue
        raise ValueError(
            f"losses: {name!r}: expected a loss that depends on `model`, got the constant "
            f"{loss.item():.4g}: detached, or made without gradients enabled; give it with its "
            "graph, or leave it out"
        )


@contextmanager
def explaining_second_pass() -> Iterator[None]:
    """Say why a backward pass finds its graph gone, which torch cannot know.

    Raises:
        ValueError: If it does.
    """
    try:
        yield
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise ValueError(
            "losses: their graph was backpropagated before, which freed it; trace.backward(main, "
            "auxiliary) replaces (main + auxiliary).backward(), so call it alone, once after each "
            "forward pass"
        ) from error


def check_names(objectives: Sequence[str]) -> tuple[str, ...]:
    """Raise a ValueError unless the names of the losses differ."""
    names = tuple(objectives)

    # A string is a sequence of strings too: its letters.
    are_words = all(isinstance(name, str) for name in names) and not isinstance(objectives, str)
    if not are_words or not names or len(set(names)) < len(names):
        raise ValueError(f"`objectives`: expected different names, got {objectives!r}")

    return names


def default_names(n_losses: int) -> tuple[str, ...]:
    """Name losses of which nothing is known but their order."""
    if n_losses <= 2:
        return ("main", "auxiliary")[:n_losses]
    return ("main", *(f"auxiliary {i}" for i in range(1, n_losses)))


def check_recorded(trace: Any) -> None:
    """Refuse what is no Dataset, or has no step.

    Raises:
        TypeError: If a `Trace` was given instead of its Dataset, or anything else.
        ValueError: If no step was recorded.
    """
    if not isinstance(trace, xr.Dataset):
        hint = "; give its to_dataset()" if hasattr(trace, "to_dataset") else ""
        raise TypeError(f"`trace`: expected a Dataset, got {type(trace).__name__}{hint}")

    if trace.sizes.get("step") == 0:
        raise ValueError(
            "`trace`: expected at least one recorded step, got none; train with "
            "trace.backward(main, auxiliary), the last one of an update with update=True (or with "
            "trace.join, and trace.advance() after each update), before trace.to_dataset()"
        )
