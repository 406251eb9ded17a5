"""Random directions, held in half the memory of the weights they move.

`draw_directions` gives one or two of them. Each keeps its Gaussian numbers at half precision and a
factor for each filter; everything else is worked out from these when it is needed, a few rows at a
time: by `summands`, to add a direction to the weights, or as tensors written out.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from landscape._directions.parameters import Params
from landscape._directions.vectors import (
    ROW_BUDGET,
    Direction,
    RowwiseDirection,
    dot,
    normalising_factors,
    row_slices,
    take_rows,
)

# Numbers, a factor for each filter (None: 1), and a weight: their product is added up.
Summand = tuple[Tensor, Tensor | None, float]


@dataclass(frozen=True, eq=False)
class RandomDirection(RowwiseDirection):
    """A random direction: `factor * (numbers - share * first)`, tensor by tensor.

    Two of them take the memory of one copy of a float32 model. With the saved weights, which are
    what restores a model bit for bit, that makes two copies: what two directions written out take.

    Attributes:
        numbers: Gaussian, at half precision: all else is worked out from them, so that norms and
            angles are as exact as the weights.
        factors: A factor for each filter, in the type of the weights.
        first: The numbers of the direction that this one is orthogonal to.
        share: How much of `first` is taken away.
    """

    numbers: Params
    factors: Params
    first: Params
    share: float = 0.0

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.factors[name].new_zeros(self.numbers[name].shape)
        for rows in row_slices(tensor.shape):
            take_rows(tensor, rows).copy_(self.materialise_rows(name, rows))
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def shape_of(self, name: str) -> torch.Size:
        """Shape of a tensor, without making it."""
        return self.numbers[name].shape

    def materialise_rows(self, name: str, rows: slice) -> Tensor:
        """Some rows of a tensor, written out in the type of the weights."""
        factor = self.factor_of_rows(name, rows)
        total = take_rows(self.numbers[name], rows).to(factor.dtype, copy=True)
        if self.share:
            total.sub_(take_rows(self.first[name], rows), alpha=self.share)
        return total.mul_(factor)

    def factor_of_rows(self, name: str, rows: slice) -> Tensor:
        """The factors of some rows; one number for all of them stays one."""
        factor = self.factors[name]
        is_by_row = factor.dim() > 0 and len(factor) > 1
        return take_rows(factor, rows) if is_by_row else factor


def summands(direction: Direction, name: str, rows: slice) -> Sequence[Summand]:
    """What adds up to some rows of a direction, without writing them out."""
    if not isinstance(direction, RandomDirection):
        return [(take_rows(direction[name], rows), None, 1.0)]

    factor = direction.factor_of_rows(name, rows)
    numbers: Summand = (take_rows(direction.numbers[name], rows), factor, 1.0)
    if not direction.share:
        return [numbers]
    return [(take_rows(direction.first[name], rows), factor, -direction.share), numbers]


def draw_directions(
    tensors: Params,
    modules: Mapping[str, nn.Module],
    normalisation: str,
    *,
    seed: int,
    count: int,
) -> Sequence[RandomDirection]:
    """Draw one or two Gaussian directions: orthogonal to each other, then normalised."""
    numbers = [draw_numbers(tensors, seed, axis) for axis in range(count)]
    ones = {name: torch.ones((), dtype=t.dtype, device=t.device) for name, t in tensors.items()}
    directions = [RandomDirection(of_axis, ones, numbers[0]) for of_axis in numbers]

    if count == 2:
        first, second = directions
        directions[1] = _orthogonal(second, first)

    return [
        replace(axis, factors=normalising_factors(axis, tensors, modules, normalisation))
        for axis in directions
    ]


def draw_numbers(tensors: Params, seed: int, axis: int) -> Params:
    """Draw Gaussian numbers that depend on seed, axis and name alone, at half precision.

    Drawn on the CPU: every device and precision gets the same ones, and leaving one parameter out
    changes no other.
    """
    numbers_by_name = {}
    for name, tensor in tensors.items():
        key = hashlib.sha256(f"{seed}/{axis}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)

        # In pieces: the float64 numbers of a whole layer would be two copies of it.
        numbers = torch.empty(tensor.numel(), dtype=torch.float16, device="cpu")
        for piece in numbers.split(ROW_BUDGET):
            gaussian = torch.randn(
                len(piece), generator=generator, dtype=torch.float64, device="cpu"
            )
            piece.copy_(gaussian)

        numbers_by_name[name] = numbers.view(tensor.shape).to(tensor.device)
    return numbers_by_name


def random_direction(tensors: Params, seed: int, axis: int) -> Params:
    """Draw the same numbers as tensors, in the type of the weights."""
    numbers = draw_numbers(tensors, seed, axis)
    return {name: numbers.pop(name).to(tensor.dtype) for name, tensor in tensors.items()}


def _orthogonal(second: RandomDirection, first: RandomDirection) -> RandomDirection:
    squared_length = dot(first, first)

    # Twice: once leaves the round-off of nearly parallel directions.
    for _ in range(2):
        share = dot(first, second) / squared_length if squared_length else 0.0
        second = replace(second, share=second.share + share)
    return second
