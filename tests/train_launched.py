"""Run by `test_lab_train.py` through `accelerate launch`: trains, and the first process saves."""

import ast
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from lab.recipe import Recipe
from lab.sweep import sweep


def main(recipe: str, output: Path) -> None:
    torch.set_num_threads(1)
    (run,) = sweep([Recipe(**ast.literal_eval(recipe))], cache=output.parent)
    if PartialState().is_main_process:
        processes = PartialState().num_processes
        run.assign_attrs(processes=processes).to_netcdf(output, engine="h5netcdf")
    PartialState().destroy_process_group()


if __name__ == "__main__":  # pytest imports every file here, for its doctests
    main(sys.argv[1], Path(sys.argv[2]))
