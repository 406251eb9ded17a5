"""The vectors that Lanczos' method keeps: orthonormal rows that are grown, and shrunk, as needed.

Rows lie in blocks, so that a basis takes memory for the vectors that it has and not for those that
it may come to have.
"""

import torch
from torch import Tensor

# Rows that are made room for at a time.
_ROWS_PER_BLOCK = 8

# Numbers of each row that are combined at a time, when a basis shrinks: 2 MB a row in float64.
_COLUMNS_AT_A_TIME = 2**18


class KrylovBasis:
    """Orthonormal vectors.

    Args:
        first: The first of them; made a unit vector.
        capacity: The most that there will be.
    """

    def __init__(self, first: Tensor, capacity: int) -> None:
        self._blocks: list[Tensor] = []
        self._capacity = capacity
        self._template = first.new_empty(0)
        self.dimension = len(first)
        self.n_rows = 0
        self.append(first)

    def __len__(self) -> int:
        return self.n_rows

    def row(self, index: int) -> Tensor:
        """One of the vectors."""
        return self._blocks[index // _ROWS_PER_BLOCK][index % _ROWS_PER_BLOCK]

    def append(self, vector: Tensor) -> None:
        """Add a vector, which is orthogonal to all others, at unit length."""
        if self.n_rows == _ROWS_PER_BLOCK * len(self._blocks):
            n_missing = min(_ROWS_PER_BLOCK, self._capacity - self.n_rows)
            self._blocks.append(self._template.new_empty(n_missing, self.dimension))

        self.n_rows += 1
        self.put(self.n_rows - 1, vector)

    def put(self, index: int, vector: Tensor) -> None:
        """Write a vector over another one, at unit length."""
        # Of parameters without curvature, torch 2.7 gives products that still have a graph.
        numbers = vector.detach()
        torch.div(numbers, numbers.norm(), out=self.row(index))

    def project_out(self, vector: Tensor) -> None:
        """Take from a vector, in place, what lies in the span of the basis."""
        for _ in range(2):  # twice is enough (Kahan and Parlett)
            # All coordinates first: those of classical Gram-Schmidt, of the vector as it came.
            coordinates = [rows @ vector for rows in self._filled_blocks()]
            for rows, block_coordinates in zip(self._filled_blocks(), coordinates, strict=True):
                vector.addmv_(rows.T, block_coordinates, alpha=-1)

    def combine(self, coordinates: Tensor) -> Tensor:
        """The vector that has these coordinates, shape `(row,)`."""
        pieces = coordinates.to(self._template).split(_ROWS_PER_BLOCK)
        total = self._template.new_zeros(self.dimension)
        for rows, piece in zip(self._filled_blocks(), pieces, strict=True):
            total.addmv_(rows.T, piece)
        return total

    def shrink(self, coordinates: Tensor) -> None:
        """Keep a few combinations of the vectors instead of them, in their own memory.

        Args:
            coordinates: Of each combination, orthonormal, shape `(combination, row)`.
        """
        coordinates = coordinates.to(self._template)
        for begin in range(0, self.dimension, _COLUMNS_AT_A_TIME):
            columns = slice(begin, begin + _COLUMNS_AT_A_TIME)
            piece = torch.cat([rows[:, columns] for rows in self._filled_blocks()])

            combined = coordinates @ piece
            for index, numbers in enumerate(combined):
                self.row(index)[columns] = numbers

        self.n_rows = len(coordinates)

    def _filled_blocks(self) -> list[Tensor]:
        n_blocks = -(-self.n_rows // _ROWS_PER_BLOCK)
        n_in_last = self.n_rows - _ROWS_PER_BLOCK * (n_blocks - 1)
        return [*self._blocks[: n_blocks - 1], self._blocks[n_blocks - 1][:n_in_last]]
