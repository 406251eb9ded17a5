"""Run by `test_trace_shards.py`, once in each of two gloo processes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gradients import Trace, compare, initial_norm, noise
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
    results = {}

    for case in CASES:
        cosine, traced = backward_twice(case, rank, traced=True)
        _, plain = backward_twice(case, rank, traced=False)
        results[case] = cosine, all(map(torch.equal, traced, plain))

    results["beside"] = [branch_beside(rank, traced=traced) for traced in (True, False)]
    results["tensor parallel"] = refusals(make_tensor_parallel())
    results["fully_shard"] = refusals(fully_shard(make_mlp()))
    torch.save(results, f"{sys.argv[1]}.{rank}")
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


def make_mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


def make_tensor_parallel() -> nn.Module:
    """DTensors without `fully_shard`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(make_mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def refusals(model: nn.Module) -> dict[str, str]:
    """What each verb says to a model whose parameters are spread over processes."""
    x, y = make_batch()

    def losses(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = model(x)
        return outputs.square().mean(), outputs.sin().mean()

    attempts = {
        "Trace": lambda: Trace(model, group=None),
        "Trace, activation": lambda: Trace(
            model, group=None, level="activation", layers=["0", "2"]
        ),
        "compare": lambda: compare(model, lambda: losses(x, y), group=None),
        "noise": lambda: noise(model, (x, y), losses, batch_size=4, group=None),
        "initial_norm": lambda: initial_norm(model, (x, y)),
    }
    texts = dict.fromkeys(attempts, "")
    for verb, attempt in attempts.items():
        try:
            attempt()
        except ValueError as error:
            texts[verb] = str(error)
    return texts


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
