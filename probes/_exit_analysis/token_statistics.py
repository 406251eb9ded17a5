"""What is kept of a token's logits: a few numbers, never the logits."""

import math
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Measure = Literal["max softmax", "margin", "entropy", "cosine", "patience"]

MEASURES: tuple[Measure, ...] = get_args(Measure)
MEASURES_WITHOUT_HEAD: tuple[Measure, ...] = ("cosine",)  # decide from the hidden states alone

_LOGITS_PER_HEAD_CALL = 2**24  # 64 MB in float32
_LOGITS_PER_CHUNK = 2**20  # 4 MB in float32: several passes over them stay within a cache


def token_statistics(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers `(4, row)` and predictions `(row,)` from logits `(row, class)`.

    The numbers are the cross-entropy and three confidences from 0 to 1: the largest probability,
    its distance to the second largest, and 1 - entropy / ln(classes).
    """
    rows_per_chunk = max(1, _LOGITS_PER_CHUNK // logits.shape[-1])
    chunks = zip(logits.split(rows_per_chunk), targets.split(rows_per_chunk), strict=True)

    statistics = [
        _statistics_of_chunk(chunk_logits, chunk_targets) for chunk_logits, chunk_targets in chunks
    ]
    numbers, predictions = zip(*statistics, strict=True)
    return torch.cat(numbers, dim=1), torch.cat(predictions)


def _statistics_of_chunk(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    x = logits.float() if logits.itemsize < 4 else logits

    # With the largest logit at 0, the largest probability is 1 / sum(exp(z)).
    largest, prediction = x.max(-1, keepdim=True)
    z = x - largest
    target_z = z.gather(1, targets[:, None])[:, 0]

    # Entropy = ln(total) - sum(exp(z) * z) / total; there 0 times -inf would be no number.
    z.clamp_(min=torch.finfo(z.dtype).min)
    exp_z = z.exp()
    total = exp_z.sum(-1)
    entropy = total.log() - torch.linalg.vecdot(exp_z, z) / total

    # The runner-up is the largest once the winner is out of the way.
    exp_z.scatter_(1, prediction, -1.0)
    first = 1 / total
    second = exp_z.amax(-1) / total

    cross_entropy = total.log() - target_z
    confidences = torch.stack([first, first - second, 1 - entropy / math.log(x.shape[-1])])
    confidences = confidences.clamp(0, 1)  # rounding may leave [0, 1]
    return torch.cat([cross_entropy[None], confidences]), prediction[:, 0]


def logits_in_chunks(
    hidden: Tensor,
    is_counted: Tensor,
    n_classes: int,
    head: Callable[[Tensor], Tensor],
    *,
    by_token: bool,
) -> Iterator[Tensor]:
    """Yield logits `(row, class)` of the places that count, some rows at a time.

    Args:
        hidden: A layer's output, samples first.
        is_counted: Which places count, `(sample,)` or `(sample, token)`.
        n_classes: The width of the logits.
        head: From (some samples of) `hidden` to logits.
        by_token: Whether the head sees each token by itself, so that samples may be cut.
    """
    is_counted = is_counted.to(hidden.device)

    if by_token:
        rows = hidden[is_counted]
        for some_rows in rows.split(max(1, _LOGITS_PER_HEAD_CALL // n_classes)):
            yield head(some_rows[None])[0]
        return

    tokens_per_sample = is_counted[0].numel()
    n_samples = max(1, _LOGITS_PER_HEAD_CALL // (n_classes * tokens_per_sample))
    for some_samples, mask in zip(
        hidden.split(n_samples), is_counted.split(n_samples), strict=True
    ):
        yield head(some_samples)[mask]


def cosine_of_states(layer_input: Tensor | None, layer_output: Tensor, *, by_token: bool) -> Tensor:
    """Return the cosine of a layer's input and output at each place, 0 where it is negative.

    NaN if their shapes differ.
    """
    places = layer_output.shape[:2] if by_token else layer_output.shape[:1]
    if layer_input is None or layer_input.shape != layer_output.shape:
        return torch.full(places, torch.nan, device=layer_output.device)

    input_vectors = _as_vectors(layer_input, len(places))
    output_vectors = _as_vectors(layer_output, len(places))
    return F.cosine_similarity(input_vectors, output_vectors, dim=-1).clamp(0, 1)


def _as_vectors(tensor: Tensor, n_place_axes: int) -> Tensor:
    has_features = tensor.dim() > n_place_axes
    vectors = tensor.flatten(n_place_axes) if has_features else tensor[..., None]
    return vectors.float() if vectors.itemsize < 4 else vectors


def patience(predictions: Tensor) -> Tensor:
    """Return the share of all exits that agree in a row up to each one, from `(exit, row)`."""
    counts = torch.ones_like(predictions, dtype=torch.float64)
    for i in range(1, len(predictions)):
        agrees = predictions[i] == predictions[i - 1]
        counts[i] = torch.where(agrees, counts[i - 1] + 1, 1.0)
    return counts / len(predictions)
