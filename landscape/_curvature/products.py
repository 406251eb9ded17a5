"""Products of a curvature matrix, or of its diagonal blocks, with flat vectors.

Three sources of products, all behind `MatrixProduct`:

    exact               graphs of all batches, kept if memory allows, else rebuilt each time
    finite difference   two gradients for each product
    operator            a matrix that somebody else multiplies by
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from landscape._curvature.chunked_cross_entropy import ChunkingCrossEntropy
from landscape._curvature.exact_products import BatchProduct, batch_product
from landscape._curvature.finite_differences import FiniteDifferences
from landscape._curvature.matrix import (
    Block,
    CurvatureMatrix,
    batches_and_shares,
    differentiating,
)
from resonance_toolkit import reporting

# Blocks and the vectors, by parameter, that they are to be multiplied with.
BlockVectors = Sequence[tuple[Block, list[Tensor]]]


@dataclass(frozen=True)
class MatrixProduct:
    """Multiplies by a matrix.

    Attributes:
        multiply_blocks: Products of blocks with vectors, as tensors by parameter.
        params: The parameters, whose types and devices products have.
        graph_bytes: Bytes of retained graphs.
        error: What products with unit vectors are known to, relative to the norm of the matrix; 0
            if only rounding limits them.
        multiply_otherwise: The same products with errors of their own; None if there are none.
        group: Processes over whose batches products are summed.
    """

    multiply_blocks: Callable[[BlockVectors], list[list[Tensor]]]
    params: Sequence[Tensor]
    graph_bytes: int = 0
    error: float = 0.0
    multiply_otherwise: Callable[[BlockVectors], list[list[Tensor]]] | None = None
    group: dist.ProcessGroup | None = None

    def __call__(self, vector: Tensor) -> Tensor:
        """Multiply a flat vector by the whole matrix."""
        (product,) = self.multiply([(range(len(self.params)), vector)])
        return product

    def multiply(self, block_vectors: Sequence[tuple[Block, Tensor]]) -> list[Tensor]:
        """Multiply flat vectors by diagonal blocks, all in the same passes over the data."""
        by_parameter = [(block, self._split(block, vector)) for block, vector in block_vectors]
        products = self.multiply_blocks(by_parameter)

        flat_products = [
            torch.cat([piece.reshape(-1).to(vector) for piece in product])
            for (_, vector), product in zip(block_vectors, products, strict=True)
        ]
        if self.group is not None:
            for flat_product in flat_products:
                dist.all_reduce(flat_product, group=self.group)
        return flat_products

    def control(self) -> "MatrixProduct | None":
        """The same matrix with other errors, if it has some."""
        if self.multiply_otherwise is None:
            return None
        return replace(self, multiply_blocks=self.multiply_otherwise, multiply_otherwise=None)

    def _split(self, block: Block, vector: Tensor) -> list[Tensor]:
        params = [self.params[i] for i in block]
        pieces = vector.split([p.numel() for p in params])
        return [piece.to(p).view_as(p) for piece, p in zip(pieces, params, strict=True)]


@contextmanager
def matrix_vector_product(matrix: CurvatureMatrix) -> Iterator[MatrixProduct]:
    """Give products with the matrix of the mean loss, for as long as the body runs."""
    # How many products there will be is not known: shown is how many there were, and how fast.
    with differentiating(matrix), reporting("curvature", unit="product") as progress:
        if matrix.product_kind == "exact":
            product = _exact_product(matrix)
        else:
            product = _finite_difference_product(matrix)

        def multiply_and_report(block_vectors: BlockVectors) -> list[list[Tensor]]:
            products = product.multiply_blocks(block_vectors)
            progress.update()
            return products

        yield replace(product, multiply_blocks=multiply_and_report, group=matrix.group)


def _exact_product(matrix: CurvatureMatrix) -> MatrixProduct:
    """Differentiate the gradient's graph again for each product.

    Where all graphs fit into memory, that costs less than three forward passes.
    """
    # Torch's cross-entropy takes several times the memory of its logits to be differentiated twice.
    with ChunkingCrossEntropy():
        kept_products, graph_bytes = _keep_graphs(matrix)

    def multiply_blocks(block_vectors: BlockVectors) -> list[list[Tensor]]:
        products = _batch_products(matrix) if kept_products is None else kept_products

        # The mean over samples is a sum over batches, each with its share.
        totals: list[list[Tensor]] = []
        with ChunkingCrossEntropy():
            for multiply in products:
                terms = [multiply(block, vector) for block, vector in block_vectors]
                totals = _add(totals, terms) if totals else terms
        return totals

    return MatrixProduct(multiply_blocks, list(matrix.params.values()), graph_bytes)


def _finite_difference_product(matrix: CurvatureMatrix) -> MatrixProduct:
    differences = FiniteDifferences(matrix)

    def multiply_blocks(block_vectors: BlockVectors) -> list[list[Tensor]]:
        return [differences.multiply(block, vector) for block, vector in block_vectors]

    def multiply_otherwise(block_vectors: BlockVectors) -> list[list[Tensor]]:
        return [differences.multiply_otherwise(block, vector) for block, vector in block_vectors]

    # Each process has chosen a step of its own: the largest error holds for the sum.
    error = torch.tensor(differences.error, dtype=torch.float64)
    if matrix.group is not None:
        error = error.to(next(iter(matrix.params.values())).device)
        dist.all_reduce(error, dist.ReduceOp.MAX, group=matrix.group)

    params = list(matrix.params.values())
    return MatrixProduct(
        multiply_blocks, params, error=error.item(), multiply_otherwise=multiply_otherwise
    )


def _add(totals: list[list[Tensor]], terms: list[list[Tensor]]) -> list[list[Tensor]]:
    # Not in place: autograd may give one tensor as the product of two parameters.
    return [
        [a + b for a, b in zip(total, term, strict=True)]
        for total, term in zip(totals, terms, strict=True)
    ]


def _keep_graphs(matrix: CurvatureMatrix) -> tuple[list[BatchProduct] | None, int]:
    """The products of all batches and the bytes of their graphs, or None if they are too many."""
    products = []
    bytes_by_storage: dict[int, int] = {}
    weight_storages = {p.untyped_storage().data_ptr() for p in matrix.model.parameters()}

    def count_bytes(tensor: Tensor) -> Tensor:
        # A graph saves views of one tensor many times, and of the weights, which are there anyway.
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weight_storages:
            bytes_by_storage[storage.data_ptr()] = storage.nbytes()

        # The tensor itself knows its own graph: with it in there, the graph would never be freed.
        return tensor.detach()

    with saved_tensors_hooks(count_bytes, lambda tensor: tensor):
        for multiply in _batch_products(matrix):
            products.append(multiply)
            if sum(bytes_by_storage.values()) > matrix.memory:
                return None, 0
    return products, sum(bytes_by_storage.values())


def _batch_products(matrix: CurvatureMatrix) -> Iterator[BatchProduct]:
    for batch, share in batches_and_shares(matrix):
        yield batch_product(matrix, batch, share)
