"""Hidden states of any shape as rows: one vector of features at every position of a sample."""

from torch import Tensor

from nudging._replay.padding import zero_padding


def as_rows(tensor: Tensor, name: str) -> Tensor:
    """View `(sample, feature)`, token sequences and feature maps as `(sample, position, feature)`.

    Args:
        tensor: `(sample, feature)`, `(sample, token, feature)` or `(sample, feature, y, x)`.
        name: What to call it in an error.
    """
    match tensor.dim():
        case 2:
            return tensor.unsqueeze(1)
        case 3:
            return tensor
        case 4:
            return tensor.flatten(2).transpose(1, 2)
    raise ValueError(
        f"{name}: expected (sample, feature), (sample, token, feature) or "
        f"(sample, feature, y, x), got shape {tuple(tensor.shape)}"
    )


def from_rows(rows: Tensor, template: Tensor) -> Tensor:
    """Undo `as_rows`: give rows the shape of a tensor."""
    if template.dim() == 4:
        rows = rows.transpose(1, 2)
    return rows.reshape(template.shape)


def spread_rows(rows: Tensor, template: Tensor, name: str) -> Tensor:
    """Give every position of a tensor its row, or all of them the only one."""
    n_positions = as_rows(template, name).shape[1]
    if rows.shape[1] not in (1, n_positions):
        raise ValueError(
            f"{name}: expected as many positions as the output has ({rows.shape[1]}), got "
            f"{n_positions}"
        )
    return from_rows(rows.expand(-1, n_positions, -1), template)


def mean_of_rows(rows: Tensor, counts: Tensor | None) -> Tensor:
    """Average `(..., sample, position, feature)` over the positions of each sample that count.

    Args:
        rows: Of several samples.
        counts: False at padding, `(sample, position)`; None if all positions count.
    """
    if counts is None:
        return rows.mean(-2, keepdim=True)
    return zero_padding(rows, counts).sum(-2, keepdim=True) / counts.sum(1)[:, None, None]


def root_mean_square(rows: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return that of each sample of `(..., sample, position, feature)`, without padding."""
    # Never 0, so that it can be divided by and differentiated.
    if counts is None:
        return (rows.square().mean((-2, -1), keepdim=True) + 1e-24).sqrt()
    return (mean_of_rows(rows.square(), counts).mean(-1, keepdim=True) + 1e-24).sqrt()
