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
    """Measure the attention of your own forward passes, also in training.

    The body of the `with` statement runs as it would without it: with the same values (within 1e-5
    if torch leaves its C++ fast path for `nn.TransformerEncoder` and `nn.MultiheadAttention`), the
    same graph, modes and random numbers. A compiled model runs uncompiled inside, and need not be
    compiled again afterwards. Call `backward()` after the body. Several forward passes are
    concatenated along `sample`; if their sequences differ in length, shorter ones end with NaN.

    Args:
        model: The model that you call inside the body, whole or in parts, in this thread.
        layers: Names or patterns; attention inside these layers is measured. None measures all.
        queries: Which rows of the attention to keep. "cls": the class token's. "mean": the mean
            over all rows, of each statistic and of the maps. "auto": "cls" if there is a class
            token (a parameter of that name, or the first token of a text encoder such as Bert),
            else "mean". "all": every row. Or indices, counted through all windows in turn.
        keys: "patches" leaves out class, distillation and register tokens, and rescales the rest
            of the row to sum to one; "all" keeps them.
        maps: Also keep the weights: 8 bytes each.
        threshold: A key counts in `coverage` if its weight is at least this share of the peak.
        mass: The share of the attention that `mass_coverage` collects.
        prefix: How many tokens come before the patches, the class token first. None: found
            automatically.
        chunk: "all" and "mean" compute this many queries at a time, to bound memory.

    Returns:
        A context manager that yields a recording. After the body, its method `dataset()` returns
        what `attention.capture` returns.

    Raises:
        ValueError: If an argument is wrong, if no attention was seen, or if a layer uses a kernel
            that cannot be read.
        RuntimeError: If the attention that was read does not reproduce a layer's own output.

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
