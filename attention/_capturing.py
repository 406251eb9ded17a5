import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from attention._layout import find_prefix
from attention._read import Settings
from attention._recording import Recording
from attention._tap import Tap
from resonance import find_layers, unwrap


@contextmanager
def capturing(
    model: nn.Module,
    *,
    layers: str | Sequence[str] | None = None,
    queries: str | Sequence[int] = "cls",
    keys: str = "patches",
    maps: bool = False,
    threshold: float = 0.1,
    mass: float = 0.9,
    prefix: int | None = None,
    chunk: int = 64,
) -> Iterator[Recording]:
    """Read the attention of the forward passes in the body."""
    inner = unwrap(model)
    names = {id(module): name for name, module in find_layers(model, "**").items()}
    names[id(inner)] = ""
    chosen = None if layers is None else set(find_layers(model, layers))
    found, has_class_token = find_prefix(inner) if prefix is None else (prefix, prefix > 0)
    settings = Settings(
        queries=queries if isinstance(queries, str) else list(queries),
        keys=keys,
        maps=maps,
        threshold=threshold,
        mass=mass,
        prefix=found,
        chunk=chunk,
    )
    recording = Recording(model, settings, chosen)
    tap = Tap(names, recording.receive)
    recording.image_sizes = tap.image_sizes
    # Nothing can have been compiled before dynamo is imported, and importing it takes seconds.
    dynamo = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if dynamo else nullcontext(), tap:
        yield recording
    recording.close()
