from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn


def check_settings(
    model: nn.Module,
    every: int,
    level: str,
    layers: str | Sequence[str] | None,
    scaler: object,
    separate: bool | None,
    group: object,
) -> None:
    """Raise a TypeError or ValueError if the settings of a trace do not fit."""
    check_model(model)
    check_group(group)
    if scaler is not None and not callable(getattr(scaler, "scale", None)):
        raise TypeError(f"`scaler`: expected a GradScaler or None, got {type(scaler).__name__}")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"`every`: expected a whole number of at least 1, got {every!r}")
    if level not in ("parameter", "activation"):
        raise ValueError(f"`level`: expected 'parameter' or 'activation', got {level!r}")
    if (layers is None) != (level == "parameter"):
        wanted = "names of layers" if layers is None else "None; `regroup` chooses afterwards"
        raise ValueError(f"`layers`: expected {wanted} with level={level!r}, got {layers!r}")
    if level == "activation" and separate is not None:
        raise ValueError(
            "`separate`: expected None with level='activation', where one pass carries all losses, "
            f"got {separate!r}; use level='parameter'"
        )


def check_model(model: object) -> None:
    """Raise a TypeError unless it is a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model`: expected an nn.Module, got {type(model).__name__}")


def check_group(group: object) -> None:
    """Raise a TypeError unless it says over which processes to average."""
    if group is not None and group != "auto" and not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"`group`: expected 'auto', None or a ProcessGroup, got {group!r}")


def check_losses(losses: Sequence[Tensor], names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Raise a ValueError unless the losses are scalars and as many as their names."""
    names = names or default_names(len(losses))
    if not losses or len(losses) != len(names):
        expected = f"{len(names)} ({', '.join(names)})" if losses else "at least one"
        raise ValueError(f"losses: expected {expected}, got {len(losses)}")
    for name, loss in zip(names, losses, strict=True):
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"losses: {name!r}: expected a scalar tensor, got {got}")
    return names


def check_names(objectives: Sequence[str]) -> tuple[str, ...]:
    """Raise a ValueError unless the names of the losses differ."""
    names = tuple(objectives)
    text = all(isinstance(name, str) for name in names) and not isinstance(objectives, str)
    if not text or not names or len(set(names)) < len(names):
        raise ValueError(f"`objectives`: expected different names, got {objectives!r}")
    return names


def default_names(count: int) -> tuple[str, ...]:
    """Name losses of which nothing is known but their order."""
    if count <= 2:
        return ("main", "auxiliary")[:count]
    return ("main", *(f"auxiliary {i}" for i in range(1, count)))
