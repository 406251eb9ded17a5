from collections.abc import Sequence
from contextlib import AbstractContextManager

from torch import nn

from attention._recording import Recording
from attention._settings import KeyChoice, QueryChoice, Settings
from attention._watching import watching


def capturing(
    model: nn.Module,
    *,
    layers: str | Sequence[str] | None = None,
    queries: QueryChoice | Sequence[int] = "auto",
    keys: KeyChoice = "patches",
    maps: bool = False,
    threshold: float = 0.1,
    mass: float = 0.9,
    prefix: int | None = None,
    chunk: int = 64,
) -> AbstractContextManager[Recording]:
    """Read the attention of your own forward passes, in training too.

    The body runs as it would without: the same values (to 1e-5 where torch leaves its C++ fast
    path for `nn.TransformerEncoder` and `nn.MultiheadAttention`), graph, modes and random numbers.
    A compiled model runs uncompiled inside, and is not compiled again afterwards. Leave the body
    before `backward()`. Several forward passes inside follow one another along `sample`; where
    their sequences are of unequal lengths, the shorter ones have NaN at the end.

    Args:
        model: Called inside, whole or by its parts, in this thread.
        layers: Names or patterns; attention inside these layers is kept. None keeps all.
        queries: "auto" is "cls" where there is a class token (a parameter of that name, or the
            first token of a text encoder, as Bert's), else "mean". "cls" the class token's row;
            "mean" the mean over all rows, of each statistic and of the maps; "all"; or indices,
            counted through the windows one after another.
        keys: "patches" leaves class, distillation and register tokens out, and lets the rest of
            the row add up to one; "all" keeps them.
        maps: Also keep the weights: 8 bytes each.
        threshold: A key counts in `coverage` from this share of the row's peak.
        mass: What share of the attention `mass_coverage` gathers.
        prefix: How many tokens come before the patches, the class token first. None finds out.
        chunk: "all" and "mean" compute this many queries at a time, to bound memory.

    Returns:
        A context manager. It gives a recording, whose `dataset()` returns, after the body, what
        `attention.capture` returns.

    Raises:
        ValueError: If an argument is wrong, if no attention was seen, or if a layer uses a kernel
            that cannot be read.
        RuntimeError: If what was read does not reproduce a layer's own output.

    Examples:
        >>> import torch
        >>> model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> with capturing(model, queries="mean") as recording:
        ...     output = model(torch.zeros(1, 4, 8))  # equal tokens: attention is uniform
        >>> recording.dataset()["entropy"].values.round(4).tolist()  # log 4
        [[[1.3863, 1.3863]]]
    """
    settings = Settings(
        layers=layers,
        queries=queries,
        keys=keys,
        maps=maps,
        threshold=threshold,
        mass=mass,
        prefix=prefix,
        chunk=chunk,
    )
    return watching(model, settings)
