import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probes._decoding.decodable import Decodable
from probes._model.failed_pass import describe_error, failing_line
from resonance_toolkit import find_layers, unwrap


@dataclass(frozen=True)
class Settings:
    """The arguments of `probes.generate`, found to make sense."""

    prompt: Tensor
    exits: dict[int, str]  # layers passed -> the name of the last
    thresholds: tuple[float, ...]
    propagate: bool
    temperature: float
    follow: Tensor | None

    def threshold(self, passed: int) -> float:
        """What it takes to leave after so many layers."""
        return self.thresholds[list(self.exits).index(passed)]


def check(
    model: nn.Module,
    vocabulary: int,
    prompt: Tensor,
    tokens: int,
    layers: str | Sequence[str],
    threshold: float | Sequence[float],
    skipped: str,
    temperature: float,
    follow: Tensor | None,
) -> Settings:
    """Refuse what cannot be decoded, in the words of `probes.generate`."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise ValueError(f"`tokens`: expected a whole number of at least 1, got {tokens!r}")
    if skipped not in ("propagate", "recompute"):
        raise ValueError(f'`skipped`: expected "propagate" or "recompute", got {skipped!r}')
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"`temperature`: expected a number of at least 0, got {temperature!r}")
    start = _tokens("prompt", prompt, vocabulary)
    if follow is not None:
        follow = _tokens("follow", follow, vocabulary)
        if follow.shape != (len(start), tokens):
            want = (len(start), tokens)
            raise ValueError(f"`follow`: expected shape {want}, got {tuple(follow.shape)}")
    exits = _exits(unwrap(model), layers)
    thresholds = _thresholds(threshold, exits)
    return Settings(start, exits, thresholds, skipped == "propagate", temperature, follow)


def check_reach(model: Decodable, positions: int, device: torch.device) -> None:
    """Refuse a text of more positions than the model has, before the first is decoded."""
    last = torch.tensor([positions - 1], device=device)
    try:
        model.layers[0].project(model.embed(torch.zeros_like(last)[None], last), last)
    except (IndexError, RuntimeError, ValueError) as error:  # the model's own words
        raise ValueError(
            f"`tokens`: the model fails at position {positions - 1}, the last of prompt and tokens "
            f"({describe_error(error)}){failing_line(error)}"
        ) from None


def _tokens(name: str, ids: Any, vocabulary: int) -> Tensor:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
        kind = str(ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"`{name}`: expected a tensor of token numbers, got {kind}")
    rows: Tensor = ids[None] if ids.dim() == 1 else ids
    if rows.dim() != 2 or not rows.numel():
        raise ValueError(
            f"`{name}`: expected (sample, position), neither empty, got shape {tuple(rows.shape)}"
        )
    if rows.min() < 0 or rows.max() >= vocabulary:
        low, high = int(rows.min()), int(rows.max())
        raise ValueError(f"`{name}`: expected tokens 0 to {vocabulary - 1}, got {low} to {high}")
    return rows.long()


def _exits(model: nn.Module, layers: str | Sequence[str]) -> dict[int, str]:
    if not len(layers):
        return {}
    stack: list[nn.Module] = list(model.layers)  # type: ignore[arg-type]
    exits = {}
    for name, module in find_layers(model, layers).items():
        if module not in stack:
            names = [n for n, m in model.named_modules() if m in stack]
            raise ValueError(f"`layers`: expected some of {', '.join(names)}, got {name!r}")
        exits[stack.index(module) + 1] = name
    given = [layers] if isinstance(layers, str) else list(layers)
    exact = [name for name in given if name in exits.values()]
    if exact != sorted(exact, key=list(exits.values()).index):
        raise ValueError(f"`layers`: expected them in order of depth, got {', '.join(given)}")
    exits.pop(len(stack), None)  # the last layer is an exit, named or not
    return dict(sorted(exits.items()))


def _thresholds(threshold: float | Sequence[float], exits: dict[int, str]) -> tuple[float, ...]:
    try:
        values = np.asarray(threshold, dtype=float)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if np.isnan(values).any() or values.ndim > 1:
        raise ValueError(f"`threshold`: expected numbers, got {threshold!r}")
    if values.ndim and len(values) != len(exits):
        want = f"one, or one for each of {len(exits)} early exits"
        raise ValueError(f"`threshold`: expected {want}, got {len(values)}")
    return tuple(np.broadcast_to(values, len(exits)).tolist())
