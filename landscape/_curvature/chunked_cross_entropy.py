"""Cross-entropy over many classes, differentiable twice, a few rows at a time.

With `p = softmax(z)` and the target `t`, the loss of a row is `logsumexp(z) - z[t]`, its slope
`p - e_t`, and the slope of that along `u` is `p * u - p (p . u)`. All of them are recomputed, in
chunks of rows, from the logits. Of a vocabulary of 50,000 torch's own keeps several more tensors as
large as the logits for the second derivative.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Logits from which chunks pay: 16 MB in single precision.
_FEWEST_LOGITS = 2**22

# Logits in a chunk.
_LOGITS_AT_A_TIME = 2**20


class ChunkingCrossEntropy(TorchFunctionMode):
    """Inside, `cross_entropy` of class indices works in chunks, where it is large enough."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Take `cross_entropy` over; let everything else through."""
        kwargs = kwargs or {}
        if function is F.cross_entropy and _is_for_chunks(*args, **kwargs):
            return _cross_entropy(*args, **kwargs)
        return function(*args, **kwargs)


def _is_for_chunks(
    logits: Tensor,
    targets: Tensor,
    *args: Any,
    label_smoothing: float = 0.0,
    size_average: Any = None,
    reduce: Any = None,
    **kwargs: Any,
) -> bool:
    # By position only `weight` is in use; the others that follow it are deprecated.
    return (
        len(args) <= 1
        and not label_smoothing
        and size_average is None
        and reduce is None
        and not targets.is_floating_point()
        and logits.dim() > 1
        and logits.numel() >= _FEWEST_LOGITS
    )


def _cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    **_: Any,
) -> Tensor:
    """What `torch.nn.functional.cross_entropy` gives for class indices, without smoothing."""
    rows = logits.movedim(1, -1).reshape(-1, logits.shape[1])
    row_targets = targets.reshape(-1)

    counts = row_targets != ignore_index
    class_indices = row_targets.masked_fill(~counts, 0).long()
    row_weights = counts.to(rows.dtype)
    if weight is not None:
        row_weights = row_weights * weight[class_indices]

    losses: Tensor = _RowLosses.apply(rows, class_indices, row_weights)
    if reduction == "none":
        return losses.reshape(targets.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / row_weights.sum()


class _RowLosses(Function):
    """The weighted loss of each row, `(row,)`, of logits `(row, class)`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        # Half precision would lose what is left of a sum over many classes.
        wide = torch.promote_types(logits.dtype, torch.float32)
        log_sums = torch.cat([logits[rows].to(wide).logsumexp(1) for rows in _chunks(logits)])
        ctx.save_for_backward(logits, targets, weights, log_sums)

        picked = logits.gather(1, targets[:, None])[:, 0]
        return (log_sums.to(logits.dtype) - picked) * weights

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, weights, log_sums = ctx.saved_tensors
        return _RowSlopes.apply(logits, targets, slopes[0] * weights, log_sums), None, None


class _RowSlopes(Function):
    """The slopes of the losses by the logits, `(row, class)`, times a scale for each row."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, scales: Tensor, log_sums: Tensor
    ) -> Tensor:
        ctx.save_for_backward(logits, targets, scales, log_sums)
        slopes = torch.empty_like(logits)
        for rows, probabilities in _probabilities(logits, log_sums):
            probabilities.scatter_add_(1, targets[rows, None], _minus_one(probabilities))
            slopes[rows] = (probabilities * scales[rows, None]).to(slopes.dtype)
        return slopes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor, None, Tensor, None]:
        logits, targets, scales, log_sums = ctx.saved_tensors
        (direction,) = along
        curved = torch.empty_like(logits)
        by_scale = torch.empty_like(scales)

        for rows, probabilities in _probabilities(logits, log_sums):
            weighted = probabilities * direction[rows]
            means = weighted.sum(1, keepdim=True)
            curved[rows] = ((weighted - probabilities * means) * scales[rows, None]).to(curved)
            at_target = direction[rows].gather(1, targets[rows, None])
            by_scale[rows] = (means - at_target)[:, 0].to(by_scale)
        return curved, None, by_scale, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    n_rows, n_classes = logits.shape
    step = max(1, _LOGITS_AT_A_TIME // n_classes)
    for begin in range(0, n_rows, step):
        yield slice(begin, begin + step)


def _probabilities(logits: Tensor, log_sums: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Softmax of a few rows at a time, in the precision of the sums."""
    for rows in _chunks(logits):
        yield rows, (logits[rows].to(log_sums) - log_sums[rows, None]).exp()


def _minus_one(probabilities: Tensor) -> Tensor:
    return probabilities.new_full((len(probabilities), 1), -1.0)
