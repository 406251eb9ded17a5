"""Two ranks train with a probe and compare with one process that sees the whole batch.

usage: ranks_probe.py SCENARIO ...    (started by launch.run_ranks)
"""

import copy
import pickle
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import probes
from tests.helpers.launch import leave

LAYERS = ["0", "2"]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.arange(8) % 3


def train(call, model, probe, x, y, *, pieces=1, steps=3, accumulate=None):
    parameters = [*model.parameters(), *probe.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        for index, (inputs, targets) in enumerate(
            zip(x.chunk(pieces), y.chunk(pieces), strict=True)
        ):
            last = index == pieces - 1
            context = torch.enable_grad() if last or accumulate is None else accumulate()
            with context:
                main = F.cross_entropy(call(inputs), targets)
                adaptive = {"main": main} if isinstance(probe.strength, _ADAPTIVE) else {}
                ((main + probe.loss(targets, **adaptive)) / pieces).backward()
        optimizer.step()
    return [whole(p) for p in parameters]


_ADAPTIVE = probes.schedules.Adaptive


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.full_tensor() if isinstance(p, DTensor) else p).detach()


def main(scenarios: list[str]) -> None:
    # The oracle first, while there is no process group: one process, the whole batch, no wrapper.
    expected = {}
    for name in scenarios:
        model = network()
        probe = probes.attach(model, LAYERS, n=3, alpha=strength(name))
        expected[name] = train(model, model, probe, *data())
    dist.init_process_group("gloo")
    for name in scenarios:
        found = train_as_rank(name)
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-6, msg=_named(name))
        moved = [(a - b.detach()).abs().max() for a, b in zip(found, network().parameters())]  # noqa: B905
        assert min(moved) > 1e-3, "the test would pass without training"
    dist.barrier()
    dist.destroy_process_group()


def train_as_rank(scenario: str) -> list[torch.Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, y = data()
    mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
    model = network()
    attach = partial(probes.attach, layers=LAYERS, n=3, alpha=strength(scenario))
    probe = None if scenario.endswith("after") else attach(model)
    if scenario.startswith("fsdp"):
        for index in (0, 2) if "root" in scenario else (0, 2, 4):
            fully_shard(model[index])
        call = fully_shard(model)
    else:
        call = DistributedDataParallel(model, find_unused_parameters=scenario == "ddp-unused")
    accumulate = call.no_sync if scenario == "ddp-accumulate" else None
    if scenario == "ddp-compiled":
        call = torch.compile(call, backend="aot_eager")
    probe = probe or attach(call)
    if scenario == "ddp-unpickled":
        probe = pickle.loads(pickle.dumps(probe)).reattach(model)
    elif scenario == "ddp-assigned":
        state = {k: copy.deepcopy(v) for k, v in probe.state_dict().items()}
        probe.load_state_dict(state, assign=True)
    pieces = 1 if accumulate is None else 2
    return train(call, model, probe, x[mine], y[mine], pieces=pieces, accumulate=accumulate)


def strength(scenario: str) -> float | probes.schedules.Adaptive:
    return probes.schedules.balance(0.5) if "balance" in scenario else 0.5


def _named(scenario: str):
    return lambda text: f"{scenario}: {text}"


if __name__ == "__main__":
    main(sys.argv[1:])
    leave()
