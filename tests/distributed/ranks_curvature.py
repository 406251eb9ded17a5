"""Run by `test_curvature.py`, once in each of two gloo processes."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import landscape
from tests.helpers.dense_curvature import make
from tests.helpers.launch import leave

# Unequal parts: a mean of means would not be the mean.
PARTS = (slice(0, 13), slice(13, 20))

SETTINGS = {
    "hessian": {"k": 3, "trace_probes": 10},
    "gauss-newton": {"k": 2, "matrix": "gauss-newton", "trace_probes": 0},
    "by layer": {"k": 1, "by": "layer", "trace_probes": 0},
    "finite difference": {"k": 2, "product": "finite difference", "trace_probes": 0},
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    part = PARTS[dist.get_rank()]

    model, (x, y) = make()
    wrapped = DistributedDataParallel(model)
    results = {
        name: landscape.curvature(wrapped, (x[part], y[part]), samples=None, **settings).to_dict()
        for name, settings in SETTINGS.items()
    }
    torch.save(results, f"{sys.argv[1]}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    leave()
