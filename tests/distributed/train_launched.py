"""Run by `test_lab_launched.py` through `accelerate launch`: the first process saves the runs."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import xarray as xr
from accelerate import Accelerator, DistributedType, PartialState
from accelerate.state import AcceleratorState
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook

import lab.training.evaluate
import lab.training.train
from lab.studies.sweep import key_of, sweep
from lab.training import curves
from lab.training.recipe import Recipe
from lab.training.run import Run
from tests.helpers.launch import leave


def main(folder: Path) -> None:
    """Train by every case of `cases.json`; what each gave is `<name>.nc`."""
    torch.set_num_threads(1)
    Accelerator()
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        run = run_case(case, folder / f"cache of {name}", folder / f"{name}.pt")
        if PartialState().is_main_process:
            run.to_netcdf(folder / f"{name}.nc", engine="h5netcdf")

    PartialState().destroy_process_group()


def run_case(case: dict[str, Any], cache: Path, begun: Path) -> xr.Dataset:
    """A run as the launcher wants it; or in another precision, sharded, interrupted half-way.

    What is left of an interrupted run is also kept as `begun`; where that was there before, by
    whoever began it, the run goes on from it.
    """
    AcceleratorState._reset_state()
    PartialState().distributed_type = DistributedType.MULTI_CPU
    os.environ["ACCELERATE_MIXED_PRECISION"] = case["precision"]
    if case.get("sharded"):
        shard()

    recipe = Recipe(**case["recipe"])
    checkpoint = cache / f"{key_of(recipe)}.pt"
    lab.training.evaluate.IMAGES_PER_PASS = case.get("evaluated", 250)

    if case.get("interrupted"):
        interrupt(recipe, checkpoint)
        copy(checkpoint, begun)
    elif begun.is_file():
        copy(begun, checkpoint)

    with (
        noting_precision() as precisions,
        patch.object(lab.training.train, "assemble", assemble),
        patch.object(
            lab.training.train, "train_epoch", wraps=lab.training.train.train_epoch
        ) as trained,
    ):
        (run,) = sweep([recipe], cache=cache)

    return run.assign_attrs(computed_in=", ".join(sorted(precisions)), trained=trained.call_count)


def copy(source: Path, target: Path) -> None:
    """By the first process; the others wait."""
    if PartialState().is_main_process:
        target.parent.mkdir(exist_ok=True)
        shutil.copy(source, target)
    PartialState().wait_for_everyone()


def assemble(run: Run) -> xr.Dataset:
    """Say in how many processes it was, and in how many shards each weight."""
    trained = run.optimizer.param_groups[0]["params"]  # the model's own may be gathered just now
    (shards,) = {p.device_mesh.size() if isinstance(p, DTensor) else 1 for p in trained}
    result = curves.assemble(run)
    return result.assign_attrs(processes=run.accelerator.num_processes, shards=shards)


def shard() -> None:
    """Let Accelerate do what it does on accelerators: on processors it ignores `--use_fsdp`."""
    PartialState().distributed_type = DistributedType.MULTI_GPU  # the device is still the processor
    assert Accelerator().is_fsdp2


def interrupt(recipe: Recipe, checkpoint: Path) -> None:
    """Train for one epoch, see that its state is there, and end in the next."""
    evaluated = []

    def once(run: Run) -> dict[str, float]:
        evaluated.append(1)
        if len(evaluated) == 2:
            raise KeyboardInterrupt

        return evaluate(run)

    evaluate = lab.training.train.evaluate
    with patch.object(lab.training.train, "evaluate", once):
        try:
            lab.training.train.train(recipe, checkpoint=checkpoint, every=1)
        except KeyboardInterrupt:
            assert checkpoint.is_file()
        else:
            raise AssertionError("not interrupted")


@contextmanager
def noting_precision() -> Iterator[set[str]]:
    """In which precision linear layers compute."""
    precisions: set[str] = set()

    def note(module: nn.Module, _: object, output: Any) -> None:
        if isinstance(module, nn.Linear) and module.training:
            precisions.add(str(output.dtype))

    with register_module_forward_hook(note):
        yield precisions


if __name__ == "__main__":  # pytest imports every file here, for its doctests
    main(Path(sys.argv[1]))
    leave()
