"""Models and branches that live in several processes.

Parameters that `fully_shard` has split over ranks are whole while they are used (`gathered`), and
split afterwards, as an optimizer must find them (`resharding`, on the ground floor). Active
branches live outside the wrapped model, so that their gradients are averaged over ranks here
(`synchronise_gradients`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from resonance_toolkit import is_dtensor, is_fully_sharded

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule


@contextmanager
def gathered(root: nn.Module, names: Sequence[str], *, with_root: bool = False) -> Iterator[None]:
    """Let the body call some of a model's modules outside of the model's with_root pass.

    A module that is sharded by itself gathers its parameters whenever it is called. Others are held
    by a module around them, which may have split them again after its pass. With gradients they
    stay whole until that module's backward pass, which comes last and reduces all gradients.

    Args:
        root: The model.
        names: Which modules.
        with_root: The root's with_root parameters, too: a user's function may need them.
    """
    check_mates(root, names)

    # In the same order on every rank, as a set is not: they gather together.
    split_names = [name for name in names if _is_split(root.get_submodule(name))]
    holders = dict.fromkeys(_find_holder(root, name) for name in split_names)
    modules_to_gather = [holder for holder in holders if holder is not None]

    if with_root and _is_split(root) and is_fully_sharded(root) and root not in modules_to_gather:
        modules_to_gather.append(root)

    for module in modules_to_gather:
        module.unshard()
    try:
        yield
    finally:
        if not torch.is_grad_enabled():
            _reshard(modules_to_gather)


def check_mates(root: nn.Module, names: Sequence[str]) -> None:
    """Refuse modules that are sharded together with others: they gather and split all at once.

    Raises:
        ValueError: If some of `names` are sharded together with a module that is none of them.
    """
    modules = [root.get_submodule(name) for name in names]

    for name, module in zip(names, modules, strict=True):
        state = module._get_fsdp_state() if is_fully_sharded(module) else None

        for mate in getattr(state, "_modules", ()):
            if mate not in modules:
                mate_names = (other_name for other_name, m in root.named_modules() if m is mate)
                raise ValueError(
                    f"`head`: {name!r} is on the way to the logits, but fully_shard joins it with "
                    f"{next(mate_names, 'another module')!r}, which is not; shard the two apart, "
                    "or attach with norm=None"
                )


def synchronise_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average each parameter's gradient over all ranks as soon as it is made; asking twice is fine.

    To be asked at every loss: copies, pickles and loaded states may be other parameters.
    """
    for parameter in parameters:
        hooks = parameter._post_accumulate_grad_hooks or {}
        if parameter.requires_grad and _average_gradient not in hooks.values():
            parameter.register_post_accumulate_grad_hook(_average_gradient)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Return the sum over all ranks, in place; the values themselves in a single process."""
    if _has_several_ranks():
        dist.all_reduce(values)
    return values


def _average_gradient(parameter: Tensor) -> None:
    # With accumulation the sum so far is averaged again: the mean of equal values is themselves.
    if parameter.grad is not None and _has_several_ranks():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def _has_several_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _reshard(modules: "Iterable[FSDPModule]") -> None:
    for module in modules:
        module.reshard()


def _is_split(module: nn.Module) -> bool:
    """Tell whether a module's parameters are split now, which they are not during its pass."""
    return any(is_dtensor(parameter) for parameter in module.parameters())


def _find_holder(root: nn.Module, name: str) -> "FSDPModule | None":
    """Find the sharded module around one that is not sharded itself."""
    if is_fully_sharded(root.get_submodule(name)):
        return None

    while name:
        name = name.rpartition(".")[0]
        parent = root.get_submodule(name)
        if is_fully_sharded(parent):
            return parent
    return None
