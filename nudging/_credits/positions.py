from torch import Tensor


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


def from_rows(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `as_rows`: rows in the shape of `like`."""
    if like.dim() == 4:
        rows = rows.transpose(1, 2)
    return rows.reshape(like.shape)


def spread_rows(rows: Tensor, like: Tensor, name: str) -> Tensor:
    """Give every position of `like` its row, or all of them the only one."""
    wanted = as_rows(like, name).shape[1]
    if rows.shape[1] not in (1, wanted):
        raise ValueError(
            f"{name}: expected as many positions as the output has ({rows.shape[1]}), got {wanted}"
        )
    return from_rows(rows.expand(-1, wanted, -1), like)


def root_mean_square(rows: Tensor) -> Tensor:
    """Of each sample of `(..., sample, position, feature)`; never 0, so that it can be divided by
    and differentiated."""
    return (rows.square().mean((-2, -1), keepdim=True) + 1e-24).sqrt()
