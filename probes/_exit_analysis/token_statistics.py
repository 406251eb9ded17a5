"""What is kept of a token's logits: a few numbers, never the logits."""

import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

MEASURES = ("max softmax", "margin", "entropy", "cosine", "patience")
HEADLESS = ("cosine",)  # needs no logits to decide

_CHUNK = 2**24  # logits that a head makes together
_LOOK = 2**20  # logits looked at together: what a cache holds


def token_statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers `(4, row)` and predictions `(row,)` from logits `(row, class)`.

    The numbers are the cross-entropy and three confidences from 0 to 1: the largest probability,
    its distance to the second largest, and 1 - entropy / ln(classes).
    """
    size = max(1, _LOOK // logits.shape[-1])
    pairs = zip(logits.split(size), targets.split(size), strict=True)
    numbers, guesses = zip(*[_look(some, goals) for some, goals in pairs], strict=True)
    return torch.cat(numbers, dim=1), torch.cat(guesses)


def _look(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.float() if logits.itemsize < 4 else logits
    top, guess = x.max(-1, keepdim=True)
    z = x - top
    goal = z.gather(1, targets[:, None])[:, 0]
    z.clamp_(min=torch.finfo(z.dtype).min)  # 0 times -inf is no number
    e = z.exp()
    total = e.sum(-1)
    entropy = total.log() - torch.linalg.vecdot(e, z) / total
    e.scatter_(1, guess, -1.0)
    first, second = 1 / total, e.amax(-1) / total
    sure = torch.stack([first, first - second, 1 - entropy / math.log(x.shape[-1])])
    loss = (total.log() - goal)[None]
    return torch.cat([loss, sure.clamp(0, 1)]), guess[:, 0]  # rounding may leave [0, 1]


def in_chunks(
    hidden: Tensor,
    kept: Tensor,
    classes: int,
    head: Callable[[Tensor], Tensor],
    *,
    by_token: bool,
) -> Iterator[Tensor]:
    """Logits `(row, class)` of the places that `kept` marks, some rows at a time.

    Args:
        hidden: A layer's output, samples first.
        kept: Which places count, `(sample,)` or `(sample, token)`.
        classes: The width of the logits.
        head: From (some samples of) `hidden` to logits.
        by_token: Whether the head sees each token by itself, so that samples may be cut.
    """
    kept = kept.to(hidden.device)
    if by_token:
        rows = hidden[kept]
        for some in rows.split(max(1, _CHUNK // classes)):
            yield head(some[None])[0]
        return
    tokens = kept[0].numel()
    size = max(1, _CHUNK // (classes * tokens))
    for some, mask in zip(hidden.split(size), kept.split(size), strict=True):
        yield head(some)[mask]


def cosine(before: Tensor | None, after: Tensor, *, by_token: bool) -> Tensor:
    """Cosine of a layer's input and output at each place, negative ones 0; NaN if not alike."""
    places = after.shape[:2] if by_token else after.shape[:1]
    if before is None or before.shape != after.shape:
        return torch.full(places, torch.nan, device=after.device)
    axis = len(places)
    a, b = (t.flatten(axis) if t.dim() > axis else t[..., None] for t in (before, after))
    a, b = (t.float() if t.itemsize < 4 else t for t in (a, b))
    return F.cosine_similarity(a, b, dim=-1).clamp(0, 1)


def patience(predictions: Tensor) -> Tensor:
    """The share of all exits that agree in a row up to each one, from `(exit, row)`."""
    counts = torch.ones_like(predictions, dtype=torch.float64)
    for i in range(1, len(predictions)):
        agrees = predictions[i] == predictions[i - 1]
        counts[i] = torch.where(agrees, counts[i - 1] + 1, 1.0)
    return counts / len(predictions)
