"""How the output of a layer, of whatever shape, becomes one row of features per sample."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from resonance_toolkit import first_tensor, has_class_token, is_apart_from_class_token

# What a user may ask for; "gap" (global average pooling) is another word for "mean".
PoolName = Literal["auto", "cls", "mean", "gap", "flatten", "spatial"]
POOL_NAMES: tuple[str, ...] = get_args(PoolName)

CustomPool: TypeAlias = Callable[[Tensor], Tensor]
Pooling: TypeAlias = PoolName | CustomPool

# Attributes in which modules keep their width: of feature maps (NCHW), and of vectors (last axis).
_CONVOLUTIONAL_WIDTHS = ("out_channels", "num_features", "num_channels")
_DENSE_WIDTHS = ("out_features", "normalized_shape")


@dataclass(frozen=True)
class Pool:
    """How one layer's output becomes features: `(sample, width)`, or `(sample, ..., width)`.

    `spatial` keeps the positions, and so may a custom one. With `waits_for_targets`, `capture`
    keeps them too, and `reduce_positions` pools them once the targets have turned out to be of
    samples; those of positions need no pooling.
    """

    kind: Literal["vector", "cls", "mean", "flatten", "spatial", "custom"]
    channel: int = -1
    custom: CustomPool | None = None
    waits_for_targets: bool = False
    item: int | None = None  # of several outputs the one that is pooled; None: the first tensor

    def choose_tensor(self, output: Any) -> Tensor | None:
        """Return the tensor of a layer's output that is pooled; None if it has none."""
        if self.item is None:
            return first_tensor(output)
        return first_tensor(output[self.item])

    def fits(self, x: Tensor) -> bool:
        """Tell whether an output has positions if any are needed, and none if it had none."""
        if self.kind == "vector":
            return x.dim() == 2
        needs_positions = self.kind in ("cls", "mean", "spatial")
        return x.dim() > max(2, self.channel) if needs_positions else True

    def __call__(self, x: Tensor, counts: Tensor | None = None) -> Tensor:
        """Pool a layer's output; `counts (sample, position)` is False where it is padding."""
        # Anything that would alias the layer's output is cloned: a later in-place operation, such
        # as ReLU(inplace=True), must not reach what was captured.
        match self.kind:
            case "mean":
                return _mean_over_positions(x, self.channel, counts)
            case "cls":
                return _first_positions(x, counts)
            case "spatial":
                return x.movedim(self.channel, -1).clone()
            case "custom" if self.custom is not None:
                return self.custom(x).clone()
        return x.flatten(1).clone()

    def capture(self, x: Tensor, counts: Tensor | None = None) -> Tensor:
        """Keep what a loss may need of a layer's output."""
        if self.waits_for_targets:
            return x.movedim(self.channel, -1).clone()
        return self(x, counts)

    def reduce_positions(self, captured: Tensor, counts: Tensor | None) -> Tensor:
        """Pool what `capture` has kept, `(sample, ..., width)`, for targets of samples."""
        if not self.waits_for_targets:
            return captured
        pool = _first_positions if self.kind == "cls" else partial(_mean_over_positions, channel=-1)
        return pool(captured, counts=counts)

    def counts_at(self, x: Tensor, counts: Tensor | None) -> Tensor | None:
        """Return the padding mask of a call if it is one of this layer's positions.

        A layer with other positions, such as windows or latent tokens, has no padding of its own.
        """
        has_positions = self.kind in ("cls", "mean", "spatial") or self.waits_for_targets
        if counts is None or not has_positions:
            return None
        return counts if x.movedim(self.channel, -1).shape[:-1] == counts.shape else None


def _first_positions(x: Tensor, counts: Tensor | None) -> Tensor:
    """Return each sample's first position; of a text padded in front, the first of the text."""
    if counts is None:
        return x[:, 0].clone()
    first = counts.to(x.device).int().argmax(1)  # of several ones the first
    return x[torch.arange(len(x), device=x.device), first]


def _mean_over_positions(x: Tensor, channel: int, counts: Tensor | None) -> Tensor:
    feature_axis = channel % x.dim()
    places = tuple(axis for axis in range(1, x.dim()) if axis != feature_axis)

    # Half precision would lose digits in a mean over many positions.
    is_half = x.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if is_half else None
    if counts is None:
        return x.mean(places, dtype=dtype)

    # Padding may hold anything, also NaN: it is replaced, not multiplied by zero.
    is_real = counts.to(x.device).unsqueeze(feature_axis)
    total = x.masked_fill(~is_real, 0).sum(places, dtype=dtype)
    n_real = counts.to(x.device).sum(1, keepdim=True).clamp_min(1)
    return total / n_real


class LayerOutput(NamedTuple):
    """An output `x` of a layer, the layer's name, for errors, and the layer itself.

    The widths of the module tell which axis of the output holds features.
    """

    x: Tensor
    layer: str
    module: nn.Module


def resolve_pool(
    pool: Pooling,
    output: LayerOutput,
    root: nn.Module,
    n_patches: int | None = None,
    *,
    may_wait: bool = False,
) -> Pool:
    """Decide how the output of a layer is pooled.

    Args:
        pool: What the user asked for.
        output: An output of the layer.
        root: The model, which may own a class token.
        n_patches: How many positions a patch embedding gave; None if there is none.
        may_wait: Whether the targets may be of positions, so that "auto" waits for them.

    Raises:
        ValueError: If the output's shape does not allow it.
    """
    if not isinstance(pool, str):
        return Pool("custom", custom=pool)

    x, layer, module = output
    shape = tuple(x.shape)
    if x.dim() < 2:
        raise ValueError(f"`layers` at {layer!r}: expected features per sample, got shape {shape}")
    if pool == "cls" and x.dim() != 3:
        raise ValueError(f"`pool`: 'cls' needs tokens (sample, token, feature), got {shape}")
    if pool in ("mean", "gap") and x.dim() < 3:
        raise ValueError(f"`pool`: {pool!r} needs several positions per sample, got {shape}")

    if pool == "flatten":
        return Pool("flatten")
    if x.dim() == 2:
        return Pool("vector")

    channel = _find_channel_axis(x, module)
    if pool == "spatial":
        return Pool("spatial", channel)

    # Only tokens (sample, token, feature) may have a class token among them.
    starts_with_class_token = channel == 2 and _starts_with_class_token(output, root, n_patches)
    waits = pool == "auto" and may_wait
    if pool == "cls" or (pool == "auto" and starts_with_class_token):
        return Pool("cls", waits_for_targets=waits)
    return Pool("mean", channel, waits_for_targets=waits)


def _find_channel_axis(x: Tensor, module: nn.Module) -> int:
    """Find the axis that holds features: 1 (NCHW and its kin) or the last (tokens, NHWC)."""
    last = x.dim() - 1
    first_fits = x.shape[1] in _widths(module, _CONVOLUTIONAL_WIDTHS)
    last_fits = x.shape[last] in _widths(module, _DENSE_WIDTHS)

    if first_fits != last_fits:
        return 1 if first_fits else last
    if x.dim() == 3:
        return last

    # No telling by widths: feature maps of square images tell by themselves.
    is_channels_last = x.shape[-2] == x.shape[-3] and x.shape[-1] != x.shape[-2]
    return last if is_channels_last else 1


def _widths(module: nn.Module, attributes: tuple[str, ...]) -> set[int]:
    values = [getattr(part, name, None) for part in module.modules() for name in attributes]

    # `normalized_shape` is a tuple whose last entry is the width.
    return {
        width[-1] if isinstance(width, tuple) else width
        for width in values
        if isinstance(width, int | tuple) and width
    }


def _starts_with_class_token(output: LayerOutput, root: nn.Module, n_patches: int | None) -> bool:
    """Tell whether the first of a sequence's tokens is a class token.

    Some models own one that joins late (CaiT): then the tokens are just the patches, as many as the
    patch embedding gave, or, if there is none, a square number of them.
    """
    if not has_class_token(root) or is_apart_from_class_token(root, output.layer):
        return False

    n_tokens: int = output.x.shape[1]
    if n_patches is not None:
        return n_tokens > n_patches
    return bool(round(n_tokens**0.5) ** 2 != n_tokens)
