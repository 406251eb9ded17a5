"""A random direction, held in half the memory of the weights it moves."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from landscape._directions.parameters import Params

Direction = Mapping[str, Tensor]
Term = tuple[Tensor, Tensor | None, float]
_AT_ONCE = 2**18  # numbers; widening a whole layer would be another copy of it


@dataclass(frozen=True, eq=False)
class Drawn(Mapping[str, Tensor]):
    """A random direction: `scale * (numbers - share * first)`, tensor by tensor.

    Two of them take the memory of one copy of a float32 model. With the saved weights, which are
    what restores a model bit for bit, that makes two copies: what two directions written out take.

    Attributes:
        numbers: Gaussian, at half precision: all else is worked out from them, so that norms and
            angles are as exact as the weights.
        scales: A factor for each filter, in the type of the weights.
        first: The numbers of the direction that this one is orthogonal to.
        share: How much of `first` is taken away.
    """

    numbers: Params
    scales: Params
    first: Params
    share: float = 0.0

    def __getitem__(self, name: str) -> Tensor:
        scale = self.scales[name]
        whole = scale.new_zeros(self.numbers[name].shape)
        for rows in row_slices(whole):
            _rows(whole, rows).copy_(rows_of(self, name, rows))
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def terms_of(direction: Direction, name: str, rows: slice) -> Sequence[Term]:
    """What adds up to rows of a direction: numbers, a scale for them if any, and a weight."""
    if not isinstance(direction, Drawn):
        return [(_rows(direction[name], rows), None, 1.0)]
    scale = _scale(direction, name, rows)
    own: Term = (_rows(direction.numbers[name], rows), scale, 1.0)
    if not direction.share:
        return [own]
    return [(_rows(direction.first[name], rows), scale, -direction.share), own]


def rows_of(direction: Direction, name: str, rows: slice) -> Tensor:
    """Some rows of a direction, written out."""
    if not isinstance(direction, Drawn):
        return _rows(direction[name], rows)
    scale = _scale(direction, name, rows)
    total = _rows(direction.numbers[name], rows).to(scale.dtype, copy=True)
    if direction.share:
        total.sub_(_rows(direction.first[name], rows), alpha=direction.share)
    return total.mul_(scale)


def row_slices(tensor: Tensor) -> list[slice]:
    """Cut a tensor into pieces of whole rows, few numbers each."""
    if tensor.numel() <= _AT_ONCE:
        return [slice(None)]
    step = max(1, _AT_ONCE * len(tensor) // tensor.numel())
    return [slice(begin, begin + step) for begin in range(0, len(tensor), step)]


def _rows(tensor: Tensor, rows: slice) -> Tensor:
    return tensor[rows] if tensor.dim() else tensor


def _scale(direction: Drawn, name: str, rows: slice) -> Tensor:
    scale = direction.scales[name]
    return _rows(scale, rows) if len(scale.shape) and len(scale) > 1 else scale
