"""Run by `test_lab_train.py` through `accelerate launch`: trains, and the first process saves."""

import ast
import sys

import torch
from accelerate import PartialState

from lab.recipe import Recipe
from lab.train import train

torch.set_num_threads(1)
run = train(Recipe(**ast.literal_eval(sys.argv[1])))
if PartialState().is_main_process:
    processes = PartialState().num_processes
    run.assign_attrs(processes=processes).to_netcdf(sys.argv[2], engine="h5netcdf")
PartialState().destroy_process_group()
