"""Run by `test_trace_shards.py`, once in each of two gloo processes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gradients import Trace
from tests.helpers.small_network import make_batch, make_network, two_losses

# dtype of the parameters, dtype to compute in, `separate`, factor of the auxiliary loss
CASES = {
    "bfloat16": (torch.bfloat16, None, None, 1.0),
    "bfloat16, large": (torch.bfloat16, None, None, 300.0),
    "policy, large": (torch.float32, torch.bfloat16, None, 300.0),
    "asked for, huge": (torch.float32, None, True, 1e9),
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = {}
    for case in CASES:
        cosine, traced = backward_twice(case, rank, traced=True)
        _, plain = backward_twice(case, rank, traced=False)
        found[case] = cosine, all(map(torch.equal, traced, plain))
    found["beside"] = [branch_beside(rank, traced=traced) for traced in (True, False)]
    torch.save(found, f"{sys.argv[1]}.{rank}")
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's that still holds a tensor when Python ends would abort


def backward_twice(case: str, rank: int, *, traced: bool):
    """One update of two passes over the same batch: the cosine is that of one."""
    dtype, inner, separate, factor = CASES[case]
    model = make_network(dtype=dtype, dropout=0.0).eval()
    norm = model.stem[1]  # the policy casts no buffers
    norm.running_mean, norm.running_var = (
        buffer.to(inner or dtype) for buffer in (norm.running_mean, norm.running_var)
    )
    policy = MixedPrecisionPolicy(param_dtype=inner)
    for block in (model.stem, model.late, model):
        fully_shard(block, mp_policy=policy)
    trace = Trace(model, separate=separate)
    x, y = (part.chunk(2)[rank] for part in make_batch(size=64, dtype=dtype))
    for last in (False, True):
        main_loss, auxiliary = two_losses(model, x, y)
        losses = main_loss, factor * auxiliary
        trace.backward(*losses, update=last) if traced else sum(losses).backward()
    cosine = trace.to_dataset()["cosine_total"].item() if traced else None
    return cosine, [p.grad.to_local() for p in model.parameters()]


def branch_beside(rank: int, *, traced: bool) -> torch.Tensor:
    """What a branch that does not belong to the sharded model receives, after two passes."""
    model = make_network(dropout=0.0).eval()
    torch.manual_seed(1)
    branch = nn.Linear(3, 1).double()
    fully_shard(model)
    trace = Trace(model)
    x, _ = (part.chunk(2)[rank] for part in make_batch())
    for _ in range(2):
        logits, side = model(x)
        losses = logits.square().mean(), branch(side).square().mean()
        trace.backward(*losses) if traced else sum(losses).backward()
    return branch.weight.grad


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
