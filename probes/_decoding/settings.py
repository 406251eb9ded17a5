"""The arguments of `probes.generate`, checked and put into the form that decoding needs.

An exit is known by the number of layers that a token has passed when it gets there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from probes._decoding.decodable import Decodable
from probes._model.failed_pass import describe_error, failing_line
from resonance_toolkit import find_layers

SkippedLayers = Literal["propagate", "recompute"]


@dataclass(frozen=True)
class DecodingSettings:
    """How a text is decoded, once the arguments are found to make sense."""

    thresholds: dict[int, float]  # by exit: the confidence that it takes to leave there
    propagate: bool
    temperature: float


def check_texts(
    prompt: Any, follow: Any, n_tokens: int, vocabulary: int
) -> tuple[Tensor, Tensor | None]:
    """Return the texts as `(sample, position)`.

    Raises:
        TypeError: If one is not a tensor of integers.
        ValueError: If its shape does not fit, or a token is not in the vocabulary.
    """
    prompt_ids = _check_token_ids("prompt", prompt, vocabulary)
    if follow is None:
        return prompt_ids, None

    follow_ids = _check_token_ids("follow", follow, vocabulary)
    expected_shape = (len(prompt_ids), n_tokens)
    if follow_ids.shape != expected_shape:
        raise ValueError(
            f"`follow`: expected shape {expected_shape}, got {tuple(follow_ids.shape)}"
        )
    return prompt_ids, follow_ids


def _check_token_ids(argument: str, ids: Any, vocabulary: int) -> Tensor:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
        kind = str(ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"`{argument}`: expected a tensor of token numbers, got {kind}")

    rows: Tensor = ids[None] if ids.dim() == 1 else ids
    if rows.dim() != 2 or not rows.numel():
        raise ValueError(
            f"`{argument}`: expected (sample, position), neither empty, got shape "
            f"{tuple(rows.shape)}"
        )

    lowest = int(rows.min())
    highest = int(rows.max())
    if lowest < 0 or highest >= vocabulary:
        raise ValueError(
            f"`{argument}`: expected tokens 0 to {vocabulary - 1}, got {lowest} to {highest}"
        )
    return rows.long()


def find_early_exits(model: nn.Module, layers: str | Sequence[str]) -> dict[int, str]:
    """Return the name of the layer at each early exit, in order of depth.

    Raises:
        ValueError: If a layer is not one of `model.layers`, or they are listed in another order.
    """
    if not len(layers):
        return {}

    blocks: list[nn.Module] = list(model.layers)  # type: ignore[arg-type]
    exits = {}
    for name, module in find_layers(model, layers).items():
        if module not in blocks:
            block_names = [
                block_name for block_name, block in model.named_modules() if block in blocks
            ]
            raise ValueError(f"`layers`: expected some of {', '.join(block_names)}, got {name!r}")
        exits[blocks.index(module) + 1] = name

    # Thresholds are given in the order of the names; a pattern has no order of its own.
    patterns = [layers] if isinstance(layers, str) else list(layers)
    names = [pattern for pattern in patterns if pattern in exits.values()]
    if names != sorted(names, key=list(exits.values()).index):
        raise ValueError(f"`layers`: expected them in order of depth, got {', '.join(patterns)}")

    exits.pop(len(blocks), None)  # the last layer is an exit, named or not
    return dict(sorted(exits.items()))


def check_exit_thresholds(
    threshold: float | Sequence[float], exits: dict[int, str]
) -> dict[int, float]:
    """Return the threshold of each early exit.

    Raises:
        ValueError: If there is neither one nor one for each, or one is NaN.
    """
    try:
        values = np.asarray(threshold, dtype=float)
    except (TypeError, ValueError):  # no numbers at all
        values = np.array(np.nan)

    if np.isnan(values).any() or values.ndim > 1:
        raise ValueError(f"`threshold`: expected numbers, got {threshold!r}")
    if values.ndim and len(values) != len(exits):
        raise ValueError(
            f"`threshold`: expected one, or one for each of {len(exits)} early exits, got "
            f"{len(values)}"
        )
    return dict(zip(exits, np.broadcast_to(values, len(exits)).tolist(), strict=True))


def check_reach(model: Decodable, n_positions: int, device: torch.device) -> None:
    """Refuse a text of more positions than the model has, before the first is decoded.

    Raises:
        ValueError: If the model fails at the last position.
    """
    last_position = torch.tensor([n_positions - 1], device=device)
    token = torch.zeros_like(last_position)[None]
    try:
        model.layers[0].project(model.embed(token, last_position), last_position)
    except (IndexError, RuntimeError, ValueError) as error:  # the model's own words
        raise ValueError(
            f"`tokens`: the model fails at position {n_positions - 1}, the last of prompt and "
            f"tokens ({describe_error(error)}){failing_line(error)}"
        ) from None
