"""Which tensors a direction covers, and what counts as one filter in each of them.

Tensors travel by their dotted names, as `named_parameters()` gives them; those of `extra`, which a
model does not own, have names that start with `"extra."`.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from resonance_toolkit import branch_weights, is_stack, select, stack_length, unwrap

Params = dict[str, Tensor]
Extra = nn.Module | Mapping[str, Tensor]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def tensors_to_move(
    model: nn.Module,
    over: str | Sequence[str] | None,
    extra: Extra | None,
    *,
    argument: str = "over",
) -> Params:
    """Find the live tensors that a direction covers, by name.

    Without `over`: floating weights of two or more dimensions that are trained (all such weights if
    none is trained), so biases and norm parameters stay. With `over`: whatever it matches. A tensor
    that is shared under several names moves once.
    """
    parameters = {name: p for name, p in unwrap(model).named_parameters() if p.is_floating_point()}
    if not parameters:
        raise ValueError(
            f"`model`: expected parameters to move, {type(model).__name__} has no floating one"
        )

    if over is None:
        tensors = _weights_by_default(parameters)
    else:
        tensors = {name: parameters[name] for name in select(parameters, over, argument=argument)}

    return _without_aliases(tensors | _extra_tensors(extra))


def module_by_tensor_name(model: nn.Module, extra: Extra | None) -> dict[str, nn.Module]:
    """Find the module that owns each tensor, by the names of `tensors_to_move`."""
    modules = _owners_in(unwrap(model), "")
    if isinstance(extra, nn.Module):
        modules |= _owners_in(extra, "extra.")
    return modules


def filter_norm(tensor: Tensor, owner: nn.Module | None, name: str) -> Tensor:
    """Norm of each filter, in a shape that broadcasts against `tensor`.

    A filter is what makes one output: a row of a linear or embedding weight, an output channel of a
    convolution (axis 1 where it is transposed). Vectors and whatever is not called a weight (class
    tokens, position embeddings) are one filter.
    """
    if tensor.dim() < 2 or not _is_weight(owner, name):
        return _norm(tensor, list(range(tensor.dim())))

    if type(owner).__name__ == "Conv1D":  # transformers' transposed linear layer
        return _norm(tensor, [0])

    if isinstance(owner, _TRANSPOSED):
        # Shape (in, out / groups, ...): the filters of each group are over its own inputs.
        by_group = tensor.unflatten(0, (owner.groups, -1))
        norm = _norm(by_group, [1, *range(3, by_group.dim())])
        return norm.expand(*by_group.shape[:2], *norm.shape[2:]).flatten(0, 1)

    return _norm(tensor, list(range(1, tensor.dim())))


def tensor_norm(tensor: Tensor, owner: nn.Module | None, name: str) -> Tensor:
    """Norm of the whole tensor, in a shape that broadcasts; of each one where several are stacked.

    Whether they are is for the owner to say: see `resonance_toolkit.is_stack`.
    """
    first_axis = 1 if is_stack(owner, name) else 0
    return _norm(tensor, list(range(first_axis, tensor.dim())))


def count_tensors(tensors: Mapping[str, Tensor], modules: Mapping[str, nn.Module]) -> int:
    """Count tensors; those that are stacked in one count each."""
    return sum(stack_length(modules.get(name), name, t) for name, t in tensors.items())


def _weights_by_default(parameters: Mapping[str, Tensor]) -> Params:
    weights = {name: p for name, p in parameters.items() if p.dim() >= 2}
    trained_weights = {name: p for name, p in weights.items() if p.requires_grad}

    default_weights = trained_weights or weights
    if not default_weights:
        raise ValueError(
            "`over`: nothing to move: no parameter has two dimensions, and biases and norm "
            f'parameters stay fixed by default; pass over="**" to move {", ".join(parameters)}'
        )
    return default_weights


def _norm(tensor: Tensor, axes: list[int]) -> Tensor:
    # Of a single number: to torch, no axes mean all of them, of which there are none.
    if not axes:
        return tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
    return norm


def _is_weight(owner: nn.Module | None, name: str) -> bool:
    return isinstance(owner, nn.Embedding | nn.Linear) or "weight" in name.rpartition(".")[2]


def _extra_tensors(extra: Extra | None) -> Params:
    if extra is None:
        return {}

    if isinstance(extra, nn.Module):
        candidates: Params = branch_weights(extra)
    elif isinstance(extra, Mapping):
        candidates = dict(extra)
    else:
        raise TypeError(
            f"`extra`: expected a module or a mapping of tensors, got {type(extra).__name__}"
        )

    tensors = {f"extra.{name}": t for name, t in candidates.items() if t.is_floating_point()}
    if not tensors:
        raise ValueError("`extra`: expected floating parameters or `static` buffers, got none")
    return tensors


def _owners_in(root: nn.Module, prefix: str) -> dict[str, nn.Module]:
    return {
        f"{prefix}{path}.{leaf}" if path else f"{prefix}{leaf}": module
        for path, module in root.named_modules()
        for leaf in (*module._parameters, *module._buffers)
    }


def _without_aliases(tensors: Params) -> Params:
    addresses: set[tuple[int, torch.Size, torch.device]] = set()
    distinct: Params = {}

    for name, tensor in tensors.items():
        address = (tensor.data_ptr(), tensor.shape, tensor.device)

        # Empty tensors all have the address 0 and still are not the same one.
        if address not in addresses or tensor.numel() == 0:
            addresses.add(address)
            distinct[name] = tensor

    return distinct
