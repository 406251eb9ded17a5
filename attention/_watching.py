"""The guard that `capture` and `capturing` share: inside, attention is recorded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from attention._layout import find_prefix
from attention._recording import Recording
from attention._settings import Settings, check_settings
from attention._tap import Tap
from resonance_toolkit import check_module, find_layers, unwrap


@contextmanager
def watching(model: nn.Module, settings: Settings) -> Iterator[Recording]:
    """Record the attention of a model in forward passes that the body makes.

    Raises:
        ValueError: If a setting is wrong, if no attention was seen, or if a layer uses a kernel
            that cannot be read.
        RuntimeError: If what was read does not reproduce a layer's own output.
    """
    check_module(model)
    settings = check_settings(settings)
    root = unwrap(model)
    prefix = _resolve_prefix(root, settings)

    layers = find_layers(model, "**") if any(True for _ in root.children()) else {}
    names = {id(root): ""} | {id(module): name for name, module in layers.items()}
    chosen = None if settings.layers is None else set(find_layers(model, settings.layers))

    recording = Recording(model, settings, prefix, chosen)
    tap = Tap(names, recording.receive)
    recording.image_sizes = tap.image_sizes

    # Compiled code would run out of sight. Nothing can have been compiled before dynamo is
    # imported, and importing it takes seconds.
    may_be_compiled = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if may_be_compiled else nullcontext(), tap:
        yield recording

    unread = [layer for layer, n_left in tap.unread.items() if n_left]
    recording.close(unread, list(tap.sideways))


def _resolve_prefix(model: nn.Module, settings: Settings) -> int:
    prefix = settings.prefix
    if prefix is not None:
        has_class_token = prefix > 0
    else:
        prefix, has_class_token = find_prefix(model)

    if settings.queries == "cls" and not has_class_token:
        raise ValueError(
            '`queries`: expected "mean", "all" or indices, got "cls" (the default), but the model '
            "has no class token (or no attention at all); if it has, say with `prefix=` how many "
            "tokens come before the patches"
        )
    return prefix
