"""Matrices that somebody else multiplies by: curvlinops' operators, scipy's, or a function."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from landscape._curvature.products import BlockVectors, MatrixProduct
from landscape._curvature.setup import start_vector
from landscape._directions.parameters import Params

# How far two products may be from symmetric, in roundings of a product: they are sums of many
# numbers, in a precision that is not ours to know.
_ROUNDINGS_ALLOWED = 1000


@runtime_checkable
class Multiplier(Protocol):
    """An operator that multiplies by `@`."""

    def __matmul__(self, vector: Any, /) -> Any:
        """Multiply a flat vector."""


Operator = Multiplier | Callable[[Tensor], Tensor]


def is_operator(matrix: object) -> TypeGuard[Operator]:
    """Tell whether something multiplies vectors, and is not the name of a matrix."""
    return not isinstance(matrix, str) and (callable(matrix) or isinstance(matrix, Multiplier))


def operator_product(operator: Operator, parameters: Params) -> MatrixProduct:
    """Give products with an operator, once it has shown that it is square, real and symmetric.

    Args:
        operator: Multiplies flat vectors by `@`, tensors or else numpy arrays, or is a function of
            a flat tensor. The parameters come one after another.
        parameters: Those that it is about.

    Raises:
        ValueError: If it is of another size, or not symmetric.
        TypeError: If its products are not vectors.
    """
    params = list(parameters.values())
    template = start_vector(parameters)
    n_numbers = len(template)
    shape = tuple(getattr(operator, "shape", (n_numbers, n_numbers)))
    if shape != (n_numbers, n_numbers):
        raise ValueError(
            f"`matrix`: expected an operator of shape {(n_numbers, n_numbers)}, one number for "
            f"each number of the parameters, got {shape}; `over` chooses the parameters"
        )

    multiply = _multiplier(operator, template)
    _check_symmetry(multiply, template)

    starts = np.cumsum([0, *(p.numel() for p in params)])

    def multiply_blocks(block_vectors: BlockVectors) -> list[list[Tensor]]:
        return [_multiply_block(multiply, block, vector) for block, vector in block_vectors]

    def _multiply_block(
        multiply: Callable[[Tensor], Tensor], block: Sequence[int], vector: list[Tensor]
    ) -> list[Tensor]:
        # A block of the matrix is the matrix between two zero paddings.
        padded = torch.zeros_like(template)
        for index, piece in zip(block, vector, strict=True):
            padded[starts[index] : starts[index + 1]] = piece.reshape(-1).to(padded)

        product = multiply(padded)
        return [product[starts[i] : starts[i + 1]].view_as(params[i]) for i in block]

    return MatrixProduct(multiply_blocks, params)


def _multiplier(operator: Operator, template: Tensor) -> Callable[[Tensor], Tensor]:
    """Give a function from a flat tensor to a flat tensor, of any of the three kinds."""
    if not isinstance(operator, Multiplier):
        return lambda vector: _as_vector(operator(vector), template)

    # What the operator takes is found out: tensors, as those of curvlinops, or arrays, as scipy's.
    try:
        operator @ torch.zeros_like(template)
        takes_tensors = True
    except Exception:
        takes_tensors = False

    if takes_tensors:
        return lambda vector: _as_vector(operator @ vector, template)
    return lambda vector: _as_vector(operator @ vector.detach().cpu().numpy(), template)


def _as_vector(product: Any, template: Tensor) -> Tensor:
    if not isinstance(product, Tensor | np.ndarray):
        raise TypeError(
            f"`matrix`: expected products to be tensors or arrays, got {type(product).__name__}"
        )

    vector = torch.as_tensor(product).detach()
    if vector.is_complex() or vector.numel() != len(template):
        raise ValueError(
            f"`matrix`: expected products of {len(template)} real numbers, got shape "
            f"{tuple(vector.shape)} of {vector.dtype}"
        )
    return vector.reshape(-1).to(template)


def _check_symmetry(multiply: Callable[[Tensor], Tensor], template: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(2, len(template), generator=generator, dtype=torch.float64, device="cpu")
    first, second = numbers.to(template)

    try:
        first_image = multiply(first)
        second_image = multiply(second)
    except (RuntimeError, IndexError) as error:
        raise ValueError(
            f"`matrix`: the operator fails on a flat vector of {len(template)} numbers, one for "
            f"each number of the parameters: {error}"
        ) from error
    forth = torch.dot(second, first_image).item()
    back = torch.dot(first, second_image).item()

    scale = (second.norm() * first_image.norm() + first.norm() * second_image.norm()).item()
    allowed = _ROUNDINGS_ALLOWED * torch.finfo(torch.float32).eps * scale
    if abs(forth - back) > allowed:
        raise ValueError(
            f"`matrix`: expected a symmetric operator, but v' A u is {forth:.6g} and u' A v is "
            f"{back:.6g}; give its symmetric part, or one whose products do not change"
        )
