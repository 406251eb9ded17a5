import operator
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Integral, Real

import torch
from torch import Tensor, nn

from attention._layout import find_prefix
from attention._read import Settings
from attention._recording import Recording
from attention._tap import Tap
from resonance_toolkit import find_layers, unwrap


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
    """Read the attention of your own forward passes, in training too.

    The body runs as it would without: the same values (to 1e-5 where torch leaves its C++ fast
    path for `nn.TransformerEncoder` and `nn.MultiheadAttention`), graph, modes and random numbers.
    A compiled model runs uncompiled inside, and is not compiled again afterwards. Leave the body
    before `backward()`. Several forward passes inside, of inputs of one size, follow one another
    along `sample`.

    Args:
        model: Called inside, whole or by its parts, in this thread.
        layers: As for `attention.capture`, like all that follows.
        queries: Which rows.
        keys: Which columns.
        maps: Whether to keep the weights.
        threshold: For `coverage`.
        mass: For `mass_coverage`.
        prefix: How many tokens come before the patches.
        chunk: How many queries at a time.

    Yields:
        A recording, whose `dataset()` gives, after the body, what `attention.capture` returns.

    Raises:
        ValueError: If an argument is wrong, if no attention was seen, or if a layer uses a kernel
            that cannot be read.
        RuntimeError: If what was read does not reproduce a layer's own output.

    Examples:
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> with capturing(model, queries="mean") as recording:
        ...     output = model(torch.zeros(1, 4, 8))  # equal tokens: attention is uniform
        >>> recording.dataset()["entropy"].values.round(4).tolist()  # log 4
        [[[1.3863, 1.3863]]]
    """
    inner = unwrap(model)
    below = find_layers(model, "**") if any(True for _ in inner.children()) else {}
    names = {id(inner): ""} | {id(module): name for name, module in below.items()}
    chosen = None if layers is None else set(find_layers(model, layers))
    recording = Recording(
        model, _settings(inner, queries, keys, maps, threshold, mass, prefix, chunk), chosen
    )
    tap = Tap(names, recording.receive)
    recording.image_sizes = tap.image_sizes
    # Nothing can have been compiled before dynamo is imported, and importing it takes seconds.
    compiling = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if compiling else nullcontext(), tap:
        yield recording
    recording.close([layer for layer, left in tap.unread.items() if left], list(tap.sideways))


def _settings(
    model: nn.Module,
    queries: str | Sequence[int],
    keys: str,
    maps: bool,
    threshold: float,
    mass: float,
    prefix: int | None,
    chunk: int,
) -> Settings:
    """Check what was asked for."""
    rows = queries if isinstance(queries, str) else _indices(queries)
    if rows not in ("cls", "mean", "all") and (isinstance(rows, str) or not rows):
        raise ValueError(f'`queries`: expected "cls", "mean", "all" or indices, got {queries!r}')
    if keys not in ("patches", "all"):
        raise ValueError(f'`keys`: expected "patches" or "all", got {keys!r}')
    check_shares(threshold=threshold, mass=mass)
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"`chunk`: expected a whole number of at least 1, got {chunk!r}")
    number = isinstance(prefix, Integral) and not isinstance(prefix, bool)
    if prefix is not None and (not number or prefix < 0):
        raise ValueError(f"`prefix`: expected a number of tokens or None, got {prefix!r}")
    found, has_class_token = find_prefix(model) if prefix is None else (prefix, prefix > 0)
    if rows == "cls" and not has_class_token:
        raise ValueError(
            '`queries`: expected "mean", "all" or indices, got "cls" (the default), but the model '
            "has no class token (or no attention at all); if it has, say with `prefix=` how many "
            "tokens come before the patches"
        )
    return Settings(rows, keys, bool(maps), float(threshold), float(mass), found, chunk)


def _indices(queries: Sequence[int]) -> list[int]:
    """Whole numbers; none at all if anything else is among them, as in a mask of rows."""
    rows = queries.tolist() if isinstance(queries, Tensor) else queries
    try:
        return [] if any(isinstance(row, bool) for row in rows) else [*map(operator.index, rows)]
    except TypeError:
        return []


def check_shares(**shares: float) -> None:
    """Refuse what is no share between 0 and 1."""
    for name, share in shares.items():
        if not isinstance(share, Real) or not 0 < share <= 1:
            raise ValueError(f"`{name}`: expected a share above 0 and up to 1, got {share!r}")
