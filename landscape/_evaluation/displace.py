"""Put a model at a point, `weights + sum of distance * axis`, and back again bit for bit.

Two ways, which go together: tensors are moved in place (`displacing`), and a linear layer that
reads the data may answer from products computed once (`following_first_layer`). Such a layer is
linear in its moving weights: its output at `weights + a * d1 + b * d2` is `y0 + a * y1 + b * y2`,
three products instead of one for each point. In an MLP on images that layer is most of the work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape._directions.parameters import Params
from landscape._directions.random_directions import Summand, summands
from landscape._directions.vectors import Direction, row_slices, take_rows
from resonance_toolkit import Batches, call_model, unwrap

Point = Sequence[float]


@contextmanager
def restoring(tensors: Params) -> Iterator[Params]:
    """Give copies of the tensors, and write them back after the body."""
    copies = {name: tensor.data.clone() for name, tensor in tensors.items()}
    try:
        yield copies
    finally:
        for name, tensor in tensors.items():
            tensor.data.copy_(copies[name])


@contextmanager
def displacing(tensors: Params, axes: Sequence[Direction]) -> Iterator[Callable[[Point], None]]:
    """Give a function that puts the tensors at `where they were + sum of distance * axis`."""
    variances = [t.data for name, t in tensors.items() if name.rpartition(".")[2] == "running_var"]

    with restoring(tensors) as origin:
        pieces = list(_cut_into_pieces(tensors, origin, axes))

        def move(point: Point) -> None:
            for piece in pieces:
                _move_piece(piece, point)

            # Extrapolating beyond two models can make a running variance negative.
            for variance in variances:
                variance.clamp_(min=0)

        try:
            yield move
        finally:
            # Whoever still holds `move` must not hold a copy of the weights.
            pieces.clear()


class FirstLayer:
    """The products of one linear layer with its inputs, batch by batch.

    Whoever evaluates a point sets `point`, and `batch` before each batch.
    """

    def __init__(self, name: str) -> None:
        self.tensor_names = {f"{name}.weight", f"{name}.bias"}
        self.products: list[list[Tensor]] = []
        self.batch = 0
        self.point: Point = ()

    def forward(self, _inputs: Tensor) -> Tensor:
        """What the layer gives for the current batch at the current point."""
        at_origin, *slopes = self.products[self.batch]
        total = at_origin
        for distance, slope in zip(self.point, slopes, strict=True):
            total = torch.add(total, slope, alpha=distance)

        # Without axes, a copy: a layer behind this one may work in place.
        return total if total is not at_origin else at_origin.clone()


@contextmanager
def following_first_layer(
    model: nn.Module, name: str, axes: Sequence[Direction], batches: Batches
) -> Iterator[FirstLayer]:
    """Let the layer called `name` answer from its products."""
    module = cast(nn.Linear, unwrap(model).get_submodule(name))
    layer = FirstLayer(name)

    caught_inputs: list[Tensor] = []
    with module.register_forward_pre_hook(lambda _module, args: caught_inputs.append(args[0])):
        for batch_inputs, _ in batches:
            call_model(model, batch_inputs)
            inputs = caught_inputs.pop()

            at_origin = F.linear(inputs, module.weight, module.bias)
            slopes = [
                F.linear(inputs, axis[f"{name}.weight"], axis.get(f"{name}.bias")) for axis in axes
            ]
            layer.products.append([at_origin, *slopes])

    try:
        vars(module)["forward"] = layer.forward
        yield layer
    finally:
        vars(module).pop("forward", None)


class _Piece(NamedTuple):
    """Some rows of a tensor, as views, and what is added to them."""

    tensor: Tensor
    origin: Tensor
    room: Tensor  # for numbers at half precision, widened
    summands: list[tuple[int, Summand, bool]]  # with its axis, and whether the room is to be filled


def _cut_into_pieces(
    tensors: Params, origin: Params, axes: Sequence[Direction]
) -> Iterator[_Piece]:
    rooms: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    for name, parameter in tensors.items():
        # Through `.data`: a graph the user still wants to differentiate sees no new version.
        tensor = parameter.data

        for rows in row_slices(tensor.shape):
            tensor_rows = take_rows(tensor, rows)
            axis_summands = [
                (number, summand)
                for number, axis in enumerate(axes)
                for summand in summands(axis, name, rows)
            ]
            are_new = _are_new_numbers([summand for _, summand in axis_summands])

            # One room for all pieces of a type, as large as the largest.
            key = tensor_rows.dtype, tensor_rows.device
            if key not in rooms or rooms[key].numel() < tensor_rows.numel():
                rooms[key] = tensor_rows.new_empty(tensor_rows.numel())
            room = rooms[key][: tensor_rows.numel()].view(tensor_rows.shape)

            piece_summands = [
                (axis, summand, is_new)
                for (axis, summand), is_new in zip(axis_summands, are_new, strict=True)
            ]
            yield _Piece(tensor_rows, take_rows(origin[name], rows), room, piece_summands)


def _are_new_numbers(piece_summands: Sequence[Summand]) -> list[bool]:
    """Tell for each summand whether its numbers are others than those widened before it."""
    are_new = []
    widened_address = None
    for numbers, factor, _ in piece_summands:
        is_new = factor is not None and numbers.data_ptr() != widened_address
        if is_new:
            widened_address = numbers.data_ptr()
        are_new.append(is_new)
    return are_new


def _move_piece(piece: _Piece, point: Point) -> None:
    tensor, origin, room, piece_summands = piece
    tensor.copy_(origin)

    # Two random axes share numbers: they are widened once.
    for axis, (numbers, factor, weight), is_new in piece_summands:
        if factor is None:
            tensor.add_(numbers, alpha=point[axis])
            continue

        if is_new:
            room.copy_(numbers)
        tensor.addcmul_(room, factor, value=point[axis] * weight)
