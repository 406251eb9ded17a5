"""Guesses of what a model takes, for a dry run without an input of the user's."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from resonance_toolkit import device_of, floating_dtype_of

# Two samples: one alone would hide a layer whose output has no axis for samples.
_N_SAMPLES = 2

# Sides of square images: ImageNet, CIFAR, Tiny ImageNet, MNIST, Inception, and timm's larger ones.
_IMAGE_SIDES = (224, 32, 64, 28, 299, 384, 256)

# Frames of a clip and sides of its images, as torchvision's video models are trained.
_CLIP_SHAPES = ((16, 224, 224), (16, 112, 112))

_SIGNAL_LENGTH = 1024

# Positions of a guessed text: few, since most models take any number up to a limit.
_N_TOKENS = 8

# Where models keep the number of positions that they need, or take at most.
_LENGTH_NAMES = (
    "block_size",
    "context_length",
    "n_positions",
    "max_position_embeddings",
    "max_len",
)

# A second of sound at the rate that speech models are trained with, and a usual spectrogram.
_WAVE_LENGTH = 16_000
_N_MEL_BINS = 80
_N_FRAMES = 1024

# What the first of these modules takes says what the model takes.
_ENTRY_MODULES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def guess_inputs(root: nn.Module) -> Iterator[Any]:
    """Yield inputs for `call_model`, the likeliest first: text, sound, then numbers of any shape.

    Keywords where the model's forward has the names that transformers use, else one tensor.
    """
    first_kind = next(
        (type(m) for m in root.modules() if isinstance(m, (nn.Embedding, *_ENTRY_MODULES))), None
    )
    names = inspect.signature(root.forward).parameters

    if "input_ids" in names and _main_input(root) in ("input_ids", None):
        for ids in _token_ids(root):
            yield _with_decoder_inputs({"input_ids": ids}, names)
    elif first_kind is nn.Embedding:
        yield from _token_ids(root)

    for name in ("input_values", "input_features"):
        if name in names:
            yield from (_with_decoder_inputs({name: sound}, names) for sound in _sounds(root, name))

    yield from likely_inputs(root)


def likely_inputs(root: nn.Module) -> Iterator[Tensor]:
    """Yield zeros of the shapes that a model of this kind usually takes, the likeliest first."""
    device = device_of(root)
    dtype = floating_dtype_of(root) or torch.float32

    for shape in _likely_shapes(root):
        yield torch.zeros(_N_SAMPLES, *shape, device=device, dtype=dtype)


def _likely_shapes(root: nn.Module) -> Iterator[tuple[int, ...]]:
    """Yield shapes of one sample."""
    entry = next((module for module in root.modules() if isinstance(module, _ENTRY_MODULES)), None)
    channels = entry.in_channels if isinstance(entry, nn.modules.conv._ConvNd) else 3

    # Vision models of transformers know their image size from their configuration.
    config: Any = getattr(root, "config", None)
    side = getattr(config, "image_size", None)
    if side is not None:
        height, width = (side, side) if isinstance(side, int) else side
        yield (getattr(config, "num_channels", channels), height, width)

    # Vision transformers of timm and torchvision have it as an attribute.
    for owner in (getattr(root, "patch_embed", None), root):
        image_size = getattr(owner, "img_size", None) or getattr(owner, "image_size", None)
        if image_size is not None:
            is_square = isinstance(image_size, int)
            height, width = (image_size, image_size) if is_square else image_size
            yield (channels, height, width)

    # Other models of timm carry the configuration that they were trained with.
    config = getattr(root, "pretrained_cfg", None) or getattr(root, "default_cfg", None) or {}
    input_size = config.get("input_size") if isinstance(config, dict) else None
    if input_size is not None:
        yield tuple(input_size)

    if isinstance(entry, nn.Linear):
        yield (entry.in_features,)
    elif isinstance(entry, nn.Conv3d):
        for clip_shape in _CLIP_SHAPES:
            yield (channels, *clip_shape)
    elif isinstance(entry, nn.Conv1d):
        yield (channels, _SIGNAL_LENGTH)
    elif entry is not None:
        for side in _IMAGE_SIDES:
            yield (channels, side, side)


def _main_input(root: nn.Module) -> str | None:
    """Say what transformers call the first input of a model: sound and images have other names."""
    name = getattr(root, "main_input_name", None)
    return name if isinstance(name, str) else None


def _token_ids(root: nn.Module) -> Iterator[Tensor]:
    """Yield zeros, which every vocabulary has, of the likeliest lengths.

    The last token is the end of a text, where the configuration knows one.
    """
    config: Any = getattr(root, "config", None)
    end_id: Any = getattr(config, "eos_token_id", None)
    vocabulary_size = getattr(config, "vocab_size", 0) or 0
    has_end_token = isinstance(end_id, int) and 0 < end_id < vocabulary_size

    owners = (config, root)
    limits = [getattr(owner, name, None) for owner in owners for name in _LENGTH_NAMES]
    known_limits = [limit for limit in limits if isinstance(limit, int) and limit > 0]

    # A model whose positions are added without being cut needs just as many as it knows.
    lengths = [min([_N_TOKENS, *known_limits]), *known_limits]
    for length in dict.fromkeys(lengths):
        ids = torch.zeros(_N_SAMPLES, length, dtype=torch.long, device=device_of(root))
        if has_end_token:
            ids[:, -1] = end_id  # some classifiers, such as Bart's, look for the end of a text
        yield ids


def _sounds(root: nn.Module, name: str) -> Iterator[Tensor]:
    """Yield zeros of the shapes that speech models take: waves, or spectrograms."""
    config: Any = getattr(root, "config", None)
    n_bins = getattr(config, "num_mel_bins", _N_MEL_BINS)
    n_frames = getattr(config, "max_length", None) or _N_FRAMES

    shapes: list[tuple[int, ...]] = [(n_frames, n_bins)]
    if name == "input_values":
        shapes.insert(0, (_WAVE_LENGTH,))
    positions = getattr(config, "max_source_positions", None)
    if positions is not None:
        # Whisper halves the frames to get its positions.
        shapes.insert(0, (n_bins, 2 * positions))

    dtype = floating_dtype_of(root) or torch.float32
    for shape in shapes:
        yield torch.zeros(_N_SAMPLES, *shape, device=device_of(root), dtype=dtype)


def _with_decoder_inputs(inputs: dict[str, Tensor], names: Any) -> dict[str, Tensor]:
    """Add what an encoder-decoder feeds its decoder."""
    if "decoder_input_ids" not in names:
        return inputs
    device = next(iter(inputs.values())).device
    ids = torch.zeros(_N_SAMPLES, _N_TOKENS, dtype=torch.long, device=device)
    return {**inputs, "decoder_input_ids": ids}
