from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from nudging._measures.numbers import make_dataset
from nudging._replay.setup import choose_blocks
from resonance_toolkit import (
    all_accelerators,
    check_whole,
    find_layers,
    preserving_rng,
    provenance,
    seed_generators,
    spread,
)


def depth_utility(
    build: Callable[[], nn.Module],
    train: Callable[[nn.Module], object],
    evaluate: Callable[[nn.Module], float],
    blocks: str | Sequence[str] | None = None,
    *,
    ladder: Sequence[int] | None = None,
    seeds: Sequence[int] = (0,),
    executor: Executor | None = None,
) -> xr.Dataset:
    """Measure whether training the blocks helps, by training only the last k of them.

    With k = 0, all blocks keep their random initialisation. This baseline shows what the rest of
    the network can do without trained blocks. Building and training start from each seed of the
    global generator in turn; its state is restored afterwards.

    Args:
        build: Makes the untrained network.
        train: Trains it in place. Parameters of frozen blocks have `requires_grad=False` and must
            not change, so pass the optimizer only parameters that require a gradient.
        evaluate: Accuracy of a trained network, between 0 and 1, or any number to compare.
        blocks: Names or patterns of the blocks, in order of depth; by default those of
            `resonance_toolkit.find_blocks`.
        ladder: Values of k; by default 0, 1, ... to the number of blocks.
        seeds: Repetitions.
        executor: A `concurrent.futures.Executor` of processes (not threads) that trains the
            networks; by default this process does.

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
    for argument, function in {"build": build, "train": train, "evaluate": evaluate}.items():
        if not callable(function):
            raise TypeError(f"`{argument}`: expected a callable, got {type(function).__name__}")
    if not seeds:
        raise ValueError(f"`seeds`: expected whole numbers of at least 0, got {seeds!r}")
    checked_seeds = [check_whole("seeds", seed, at_least=0) for seed in seeds]

    # One network only to find the blocks, before hours of training are spent.
    with preserving_rng(all_accelerators()):
        model = build()
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`build`: expected a function that returns a module, got {type(model).__name__}"
        )
    found_blocks = choose_blocks(model, blocks)
    names = list(found_blocks)
    n_blocks = len(names)
    rungs = _check_ladder(ladder, n_blocks)

    tasks = [_Task(seed, n_trained) for seed in checked_seeds for n_trained in rungs]
    recipe = _Recipe(build, train, evaluate, names)
    accuracy_by_task = dict(
        spread(recipe.run, tasks, executor=executor, label="depth utility", unit="training")
    )

    # Tasks end in any order; by index, they are seed by seed, each with all rungs.
    ordered = [accuracy_by_task[index] for index in range(len(tasks))]
    accuracy = np.array(ordered).reshape(len(checked_seeds), len(rungs))
    frozen_accuracy = accuracy[:, [rungs.index(0)]] if 0 in rungs else np.nan
    utility = accuracy - frozen_accuracy

    axes = ("seed", "trained")
    return make_dataset(
        {
            "accuracy": (axes, accuracy, "accuracy"),
            "utility": (axes, utility, "accuracy above that with frozen random blocks"),
        },
        {
            "seed": (checked_seeds, "seed"),
            "trained": (rungs, "trained blocks, counted from the last"),
        },
        provenance(
            "nudging.depth_utility",
            model,
            blocks=names if blocks is None else blocks,
            blocks_reason=found_blocks.reason,
            train=train,
            n_blocks=n_blocks,
        ),
    )


class _Task(NamedTuple):
    seed: int
    n_trained: int


@dataclass(frozen=True)
class _Recipe:
    """How one network is made, trained and judged; a class, so that processes can be sent it."""

    build: Callable[[], nn.Module]
    train: Callable[[nn.Module], object]
    evaluate: Callable[[nn.Module], float]
    blocks: Sequence[str]

    def run(self, task: _Task) -> float:
        # Training may draw on any of them.
        devices = all_accelerators()
        with preserving_rng(devices):
            seed_generators(task.seed, devices)
            model = self.build()

            modules = list(find_layers(model, self.blocks, argument="blocks").values())
            frozen_modules = modules[: len(modules) - task.n_trained]
            frozen = [parameter for module in frozen_modules for parameter in module.parameters()]
            values_before = [parameter.detach().clone() for parameter in frozen]
            for parameter in frozen:
                parameter.requires_grad_(False)

            # Again, so that training draws the same numbers whatever building has drawn.
            seed_generators(task.seed, devices)
            self.train(model)

            if any(map(_has_moved, frozen, values_before)):
                raise ValueError(
                    "`train`: expected parameters without `requires_grad` to stay, but frozen "
                    "blocks were changed; give the optimizer only those that require a gradient"
                )
            return float(self.evaluate(model))


def _check_ladder(ladder: Sequence[int] | None, n_blocks: int) -> list[int]:
    rungs = list(range(n_blocks + 1)) if ladder is None else list(ladder)
    are_different = len(set(rungs)) == len(rungs)
    if not rungs or not are_different or not set(rungs) <= set(range(n_blocks + 1)):
        raise ValueError(
            f"`ladder`: expected different numbers from 0 to {n_blocks}, got {ladder!r}"
        )
    return rungs


def _has_moved(parameter: Tensor, value_before: Tensor) -> bool:
    return not torch.equal(parameter.detach().to(value_before.device), value_before)
