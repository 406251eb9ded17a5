"""Move tensors along directions, and put them back bit for bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from landscape._directions.parameters import Params
from landscape._directions.random_directions import Direction, Term, row_slices, rows_of, terms_of

Point = Sequence[float]


@contextmanager
def displacing(moving: Params, axes: Sequence[Direction]) -> Iterator[Callable[[Point], None]]:
    """Give a function that puts the tensors at `where they were + sum of distance * axis`."""
    variances = [t.data for name, t in moving.items() if name.rpartition(".")[2] == "running_var"]
    with restoring(moving) as origin:
        pieces = list(_pieces(moving, origin, axes))

        def move(point: Point) -> None:
            for tensor, start, room, terms in pieces:
                tensor.copy_(start)
                widened = None
                for axis, (numbers, scale, weight) in terms:
                    if scale is None:
                        tensor.add_(numbers, alpha=point[axis])
                        continue
                    if numbers.data_ptr() != widened:
                        room.copy_(numbers)
                        widened = numbers.data_ptr()
                    tensor.addcmul_(room, scale, value=point[axis] * weight)
            for variance in variances:
                variance.clamp_(min=0)  # beyond the models that a line goes through

        try:
            yield move
        finally:
            pieces.clear()  # whoever still holds `move` holds no copy of the weights


def _pieces(
    moving: Params, origin: Params, axes: Sequence[Direction]
) -> Iterator[tuple[Tensor, Tensor, Tensor, list[tuple[int, Term]]]]:
    """Views of some rows: of a tensor, its origin, room for numbers, and what to add by axis."""
    rooms: dict[tuple[torch.dtype, torch.device], Tensor] = {}
    for name, parameter in moving.items():
        # Through `.data`: a graph the user still wants to differentiate sees no new version.
        tensor = parameter.data
        for rows in row_slices(tensor):
            own, start = (rows_of({name: t}, name, rows) for t in (tensor, origin[name]))
            terms = [
                (i, term) for i, axis in enumerate(axes) for term in terms_of(axis, name, rows)
            ]
            key = own.dtype, own.device
            if key not in rooms or rooms[key].numel() < own.numel():
                rooms[key] = own.new_empty(own.numel())
            yield own, start, rooms[key][: own.numel()].view(own.shape), terms


@contextmanager
def restoring(tensors: Params) -> Iterator[Params]:
    """Give copies of the tensors, and write them back after the body."""
    copies = {name: tensor.data.clone() for name, tensor in tensors.items()}
    try:
        yield copies
    finally:
        for name, tensor in tensors.items():
            tensor.data.copy_(copies[name])
