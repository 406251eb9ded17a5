"""Which tensors a direction covers, and what counts as one filter in each of them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from resonance_toolkit import select, unwrap

Params = dict[str, Tensor]
Extra = nn.Module | Mapping[str, Tensor]

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def moving_tensors(
    model: nn.Module, over: str | Sequence[str] | None, extra: Extra | None
) -> Params:
    """The live tensors a direction covers, by name; those of `extra` start with `"extra."`.

    Without `over`: floating weights of two or more dimensions that are trained (all such weights if
    none is trained), so biases and norm parameters stay. With `over`: whatever it matches. A tensor
    that is shared under several names moves once.
    """
    known = {name: p for name, p in unwrap(model).named_parameters() if p.is_floating_point()}
    if not known:
        raise ValueError(
            f"`model`: expected parameters to move, {type(model).__name__} has no floating one"
        )
    if over is None:
        weights = {name: p for name, p in known.items() if p.dim() >= 2}
        trained = {name: p for name, p in weights.items() if p.requires_grad}
        chosen = trained or weights
        if not chosen:
            raise ValueError(
                "`over`: nothing to move: no parameter has two dimensions, and biases and norm "
                f'parameters stay fixed by default; pass over="**" to move {", ".join(known)}'
            )
    else:
        chosen = {name: known[name] for name in select(known, over, argument="over")}
    return _without_aliases(chosen | _extra_tensors(extra))


def owners(model: nn.Module, extra: Extra | None) -> dict[str, nn.Module]:
    """The module that holds each tensor, by the names of `moving_tensors`."""
    held = _held_by(unwrap(model), "")
    return held | (_held_by(extra, "extra.") if isinstance(extra, nn.Module) else {})


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
        by_group = tensor.unflatten(0, (owner.groups, -1))
        norm = _norm(by_group, [1, *range(3, by_group.dim())])
        return norm.expand(*by_group.shape[:2], *norm.shape[2:]).flatten(0, 1)
    return _norm(tensor, list(range(1, tensor.dim())))


def _norm(tensor: Tensor, axes: list[int]) -> Tensor:
    if not axes:  # a number: to torch no axes would mean all of them, of which there are none
        return tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True)
    return norm


def _is_weight(owner: nn.Module | None, name: str) -> bool:
    return isinstance(owner, nn.Embedding | nn.Linear) or "weight" in name.rpartition(".")[2]


def _extra_tensors(extra: Extra | None) -> Params:
    if extra is None:
        return {}
    if isinstance(extra, nn.Module):
        # Static branches kept out of `parameters()`, as buffers, are weights all the same.
        found: Params = {n: b for n, b in extra.named_buffers() if _is_static(n)}
        found |= dict(extra.named_parameters())
    elif isinstance(extra, Mapping):
        found = dict(extra)
    else:
        raise TypeError(
            f"`extra`: expected a module or a mapping of tensors, got {type(extra).__name__}"
        )
    tensors = {f"extra.{name}": t for name, t in found.items() if t.is_floating_point()}
    if not tensors:
        raise ValueError("`extra`: expected floating parameters or `static` buffers, got none")
    return tensors


def _is_static(name: str) -> bool:
    return any(part.startswith("static") for part in name.split("."))


def _held_by(module: nn.Module, prefix: str) -> dict[str, nn.Module]:
    return {
        f"{prefix}{path}.{leaf}" if path else f"{prefix}{leaf}": child
        for path, child in module.named_modules()
        for leaf in (*child._parameters, *child._buffers)
    }


def _without_aliases(tensors: Params) -> Params:
    seen: set[tuple[int, torch.Size, torch.device]] = set()
    kept: Params = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.device)
        if key not in seen or tensor.numel() == 0:
            seen.add(key)
            kept[name] = tensor
    return kept
