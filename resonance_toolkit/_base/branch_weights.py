"""The weights of branches beside a model: which tensors hold them, and how many branches each has.

A module may keep the weights of several branches in one tensor, stacked along its first axis. It
says so in an attribute, which names those of its own parameters and buffers that are such stacks:

    class Branches(nn.Module):
        stacked_tensors = ("static", "active")

What counts or scales tensor by tensor then takes every entry of a stack for a tensor of its own, as
if each branch were an `nn.Linear`. A module that stores less than it stands for (branches in closed
form) says how much that is in two further attributes, `n_parameters` and `n_tensors`.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class WeightCount:
    """How many numbers there are, in how many tensors."""

    n_parameters: int
    n_tensors: int


def branch_weights(branches: nn.Module) -> dict[str, Tensor]:
    """Find the weights of branches by dotted name: parameters, and buffers called `static...`.

    Static branches kept out of `parameters()`, as buffers, are weights all the same.

    Examples:
        >>> list(branch_weights(nn.Linear(2, 3)))
        ['weight', 'bias']
    """
    static_weights = {name: b for name, b in branches.named_buffers() if _is_static(name)}
    return static_weights | dict(branches.named_parameters())


def is_stack(owner: nn.Module | None, name: str) -> bool:
    """Tell whether a tensor holds several, stacked along its first axis.

    Args:
        owner: The module whose parameter or buffer it is, if any.
        name: What it is called, with or without the path of the owner.
    """
    declared: Any = getattr(owner, "stacked_tensors", ())
    return isinstance(declared, tuple | list) and name.rpartition(".")[2] in declared


def stack_length(owner: nn.Module | None, name: str, tensor: Tensor) -> int:
    """Count the tensors that one tensor holds: 1, unless its owner says that it is a stack."""
    return len(tensor) if is_stack(owner, name) else 1


def count_branch_weights(branches: nn.Module) -> WeightCount:
    """Count what branches stand for, whether they store it or not.

    Examples:
        >>> count_branch_weights(nn.Linear(2, 3))
        WeightCount(n_parameters=9, n_tensors=2)
    """
    n_parameters: Any = getattr(branches, "n_parameters", None)
    n_tensors: Any = getattr(branches, "n_tensors", None)
    if isinstance(n_parameters, int) and isinstance(n_tensors, int):
        return WeightCount(n_parameters, n_tensors)

    weights = branch_weights(branches)
    modules = dict(branches.named_modules())
    lengths = [
        stack_length(modules[name.rpartition(".")[0]], name, weight)
        for name, weight in weights.items()
    ]
    return WeightCount(sum(weight.numel() for weight in weights.values()), sum(lengths))


def _is_static(name: str) -> bool:
    return any(part.startswith("static") for part in name.split("."))
