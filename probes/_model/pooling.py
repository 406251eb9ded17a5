from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from resonance_toolkit import has_class_token

POOLS = ("auto", "cls", "mean", "gap", "flatten", "spatial")


@dataclass(frozen=True)
class Pool:
    """How one layer's output becomes features: `(sample, width)`, or `(sample, place, width)`.

    Only `spatial` keeps the places.
    """

    kind: str  # "vector", "cls", "mean", "flatten", "spatial" or "custom"
    channel: int = -1
    custom: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        # Anything that would alias the layer's output is cloned: a later in-place operation, such
        # as ReLU(inplace=True), must not reach what was captured.
        match self.kind:
            case "mean":
                places = tuple(axis for axis in range(1, x.dim()) if axis != self.channel % x.dim())
                half = x.dtype in (torch.float16, torch.bfloat16)
                return x.mean(places, dtype=torch.float32 if half else None)
            case "cls":
                return x[:, 0].clone()
            case "spatial":
                return x.movedim(self.channel, -1).flatten(1, -2).clone()
            case "custom" if self.custom is not None:
                return self.custom(x).clone()
        return x.flatten(1).clone()


def resolve_pool(
    pool: str | Callable[[Tensor], Tensor],
    x: Tensor,
    layer: str,
    module: nn.Module,
    root: nn.Module,
    patches: int | None,
) -> Pool:
    """Decide how the output `x` of a layer is pooled; `patches` counts those of an embedding.

    Raises:
        ValueError: If the output's shape does not allow it.
    """
    if not isinstance(pool, str):
        return Pool("custom", custom=pool)
    shape = tuple(x.shape)
    if x.dim() < 2:
        raise ValueError(f"`layers` at {layer!r}: expected features per sample, got shape {shape}")
    if x.dim() == 2 and pool in ("auto", "spatial"):
        return Pool("vector")
    if pool == "flatten":
        return Pool("flatten")
    if pool == "cls" and x.dim() != 3:
        raise ValueError(f"`pool`: 'cls' needs tokens (sample, token, feature), got {shape}")
    if pool in ("mean", "gap") and x.dim() < 3:
        raise ValueError(f"`pool`: {pool!r} needs several positions per sample, got {shape}")
    channel = _channel_axis(x, module)
    if pool == "cls" or (pool == "auto" and channel == 2 and _has_class_token(x, root, patches)):
        return Pool("cls")
    return Pool("spatial" if pool == "spatial" else "mean", channel)


def _channel_axis(x: Tensor, module: nn.Module) -> int:
    """Which axis holds features: 1 (NCHW and its kin) or the last (tokens, NHWC)."""
    shape, last = x.shape, x.dim() - 1
    first_fits = shape[1] in _widths(module, _CONVOLUTIONAL)
    last_fits = shape[last] in _widths(module, _DENSE)
    if first_fits != last_fits:
        return 1 if first_fits else last
    if x.dim() == 3:
        return last
    # No telling by widths: feature maps of square images tell by themselves.
    return last if shape[-2] == shape[-3] and shape[-1] != shape[-2] else 1


_CONVOLUTIONAL = ("out_channels", "num_features", "num_channels")
_DENSE = ("out_features", "normalized_shape")


def _widths(module: nn.Module, attributes: tuple[str, ...]) -> set[int]:
    found = [getattr(part, name, None) for part in module.modules() for name in attributes]
    return {w[-1] if isinstance(w, tuple) else w for w in found if isinstance(w, int | tuple) and w}


def _has_class_token(x: Tensor, root: nn.Module, patches: int | None) -> bool:
    """Whether the first of a sequence's tokens is a class token.

    Some models own one that joins late (CaiT): then the tokens are just the patches, as many as the
    patch embedding gave, or, if there is none, a square number of them.
    """
    if not has_class_token(root):
        return False
    tokens: int = x.shape[1]
    if patches is not None:
        return tokens > patches
    return bool(round(tokens**0.5) ** 2 != tokens)
