"""Two ranks train a sharded model with early exits and compare with one process, whole batch.

usage: ranks_exits_sharded.py HEAD SCENARIO ...    (started by launch.run_ranks)
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import probes
from tests.distributed.sharded_exits import WEIGHTS, make, shard, whole
from tests.helpers.exit_models import text
from tests.helpers.launch import leave


def train(model, exits, ids, y, pieces=1):
    parameters = [*model.parameters(), *exits.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        for index, (x, goals) in enumerate(zip(ids.chunk(pieces), y.chunk(pieces), strict=True)):
            if pieces > 1 and hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(index == pieces - 1)
            model(x)
            loss = exits.loss(goals) / pieces
            loss.backward()
        optimizer.step()
    return [whole(p) for p in parameters]


def run(head, scenario, *, sharded):
    ids, y = text(samples=8)
    if sharded:
        ids, y = (part.chunk(2)[dist.get_rank()] for part in (ids, y))
    model, layers = make(scenario)
    settings = {"head": head, "weights": WEIGHTS, "sample": ids[:2]}
    exits = None
    if "before" in scenario:
        exits = probes.attach_exits(model, layers, **settings)
    if sharded:
        shard(scenario, model, layers)
    exits = exits or probes.attach_exits(model, layers, **settings)
    if sharded:
        assert all(isinstance(p, DTensor) for p in model.parameters()), "not left as found"
    return train(model, exits, ids, y, 2 if "pieces" in scenario and sharded else 1)


def main(head, scenarios):
    expected = {name: run(head, name, sharded=False) for name in scenarios}
    dist.init_process_group("gloo")
    for name in scenarios:
        found = run(head, name, sharded=True)
        torch.testing.assert_close(
            found, expected[name], rtol=1e-9, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
    leave()
