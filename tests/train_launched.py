"""Run by `test_lab_train.py` through `accelerate launch`: trains, and the first process saves."""

import ast
import sys
from pathlib import Path

import torch
from accelerate import PartialState

from lab.recipe import Recipe
from lab.sweep import sweep

torch.set_num_threads(1)
output = Path(sys.argv[2])
(run,) = sweep([Recipe(**ast.literal_eval(sys.argv[1]))], cache=output.parent)
if PartialState().is_main_process:
    processes = PartialState().num_processes
    run.assign_attrs(processes=processes).to_netcdf(output, engine="h5netcdf")
PartialState().destroy_process_group()
