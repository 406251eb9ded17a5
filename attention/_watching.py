"""The guard that `capture` and `capturing` share: inside, attention is recorded."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from attention._layout import find_prefix
from attention._recording import Recording, Tokens
from attention._settings import Settings, check_settings
from attention._tap import Tap
from resonance_toolkit import check_module, find_layers, reads_class_token, unwrap


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
    prefix, has_class_token = _resolve_prefix(root, settings)
    if settings.queries == "auto":
        settings = replace(settings, queries="cls" if has_class_token else "mean")

    layers = find_layers(model, "**") if any(True for _ in root.children()) else {}
    names = {id(root): ""} | {id(module): name for name, module in layers.items()}
    chosen_layers = None if settings.layers is None else set(find_layers(model, settings.layers))

    tokens = Tokens(prefix, has_class_token)
    recording = Recording(model, settings, tokens, chosen_layers)
    tap = Tap(names, recording.receive)
    recording.image_sizes = tap.image_sizes

    # Compiled code would run out of sight. Nothing can have been compiled before dynamo is
    # imported, and importing it takes seconds.
    may_be_compiled = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if may_be_compiled else nullcontext(), tap:
        yield recording

    unread = [layer for layer, n_left in tap.unread.items() if n_left]
    recording.close(unread, list(tap.sideways))


def _resolve_prefix(model: nn.Module, settings: Settings) -> tuple[int, bool]:
    """Count the tokens before the patches, and tell whether a class token is the first."""
    if settings.prefix is not None:
        return settings.prefix, settings.prefix > 0

    prefix, has_class_token = find_prefix(model)

    # Bert's [CLS] is a token like others, to be left out of the keys only if it is the query.
    if settings.queries in ("auto", "cls") and not has_class_token and reads_class_token(model):
        return 1, True
    return prefix, has_class_token
