from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._measures.numbers import dataset
from nudging._replay.observe import find_blocks
from resonance_toolkit import preserving_rng, provenance, spread


class _Task(NamedTuple):
    seed: int
    trained: int


def depth_utility(
    build: Callable[[], nn.Module],
    train: Callable[[nn.Module], object],
    evaluate: Callable[[nn.Module], float],
    blocks: str | Sequence[str],
    *,
    ladder: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    executor: Executor | None = None,
) -> xr.Dataset:
    """Do trained blocks help? Train the same network with only its last k blocks free.

    With k = 0 all blocks stay at their random initialisation: the baseline that tells what the
    rest of the network can do without them. For each seed, building and training start from that
    seed of the global generator, which gets its own state back afterwards.

    Args:
        build: Makes the untrained network.
        train: Trains it in place. Parameters of frozen blocks come with `requires_grad` off, and
            must stay as they are; give the optimizer those that require a gradient.
        evaluate: Accuracy of a trained network, between 0 and 1, or any number to compare.
        blocks: Names or patterns of the blocks, in order of depth.
        ladder: Values of k; by default 0, 1, ... to the number of blocks.
        seeds: Repetitions.
        executor: Where networks are trained (processes, not threads); by default in this one.

    Returns:
        Dataset with `accuracy (seed, trained)`, where `trained` is k, and `utility (seed,
        trained)`, the accuracy above that of k = 0 with the same seed (NaN without it).

    Raises:
        ValueError: If an argument does not fit, or training moved a frozen parameter.
        TypeError: If an argument is of the wrong kind.

    Examples:
        >>> def train(model):
        ...     for p in model.parameters():
        ...         if p.requires_grad:
        ...             p.data.fill_(1.0)
        >>> build = lambda: nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        >>> ones = lambda model: sum(float((p == 1).all()) for p in model.parameters()) / 4
        >>> depth_utility(build, train, ones, "*")["utility"].values
        array([[0. , 0.5, 1. ]])
    """
    for name, given in {"build": build, "train": train, "evaluate": evaluate}.items():
        if not callable(given):
            raise TypeError(f"`{name}`: expected a callable, got {type(given).__name__}")
    if not seeds or any(type(s) is not int or s < 0 for s in seeds):
        raise ValueError(f"`seeds`: expected whole numbers of at least 0, got {seeds!r}")
    with preserving_rng():
        model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(f"`build`: expected to make a module, got {type(model).__name__}")
    depth = len(find_blocks(model, blocks))
    rungs = list(range(depth + 1)) if ladder is None else list(ladder)
    if not rungs or len(set(rungs)) < len(rungs) or not set(rungs) <= set(range(depth + 1)):
        raise ValueError(f"`ladder`: expected different numbers from 0 to {depth}, got {ladder!r}")
    tasks = [_Task(seed, k) for seed in seeds for k in rungs]
    work = partial(_accuracy, build=build, train=train, evaluate=evaluate, blocks=blocks)
    found = dict(spread(work, tasks, executor=executor, label="depth utility", unit="training"))
    accuracy = np.array([found[i] for i in range(len(tasks))]).reshape(len(seeds), len(rungs))
    frozen = accuracy[:, [rungs.index(0)]] if 0 in rungs else np.nan
    axes = ("seed", "trained")
    return dataset(
        {
            "accuracy": (axes, accuracy, "accuracy"),
            "utility": (axes, accuracy - frozen, "accuracy above that with frozen random blocks"),
        },
        {
            "seed": (list(seeds), "seed"),
            "trained": (rungs, "trained blocks, counted from the last"),
        },
        provenance("nudging.depth_utility", model, blocks=blocks, train=train, n_blocks=depth),
    )


def _accuracy(
    task: _Task,
    *,
    build: Callable[[], nn.Module],
    train: Callable[[nn.Module], object],
    evaluate: Callable[[nn.Module], float],
    blocks: str | Sequence[str],
) -> float:
    devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    with preserving_rng(devices):
        torch.manual_seed(task.seed)
        model = build()
        modules = list(find_blocks(model, blocks).values())
        frozen = [p for m in modules[: len(modules) - task.trained] for p in m.parameters()]
        before = [p.detach().clone() for p in frozen]
        for p in frozen:
            p.requires_grad_(False)
        torch.manual_seed(task.seed)
        train(model)
        if any(_moved(p, kept) for p, kept in zip(frozen, before, strict=True)):
            raise ValueError(
                "`train`: expected parameters without `requires_grad` to stay, but frozen blocks "
                "were changed; give the optimizer only those that require a gradient"
            )
        return float(evaluate(model))


def _moved(now: Tensor, before: Tensor) -> bool:
    return not torch.equal(now.detach().to(before.device), before)
