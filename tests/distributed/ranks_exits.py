"""Two ranks train a model with early exits and compare with one process and the whole batch.

usage: ranks_exits.py SCENARIO ...    (started by launch.run_ranks; such as own-accumulate)
"""

import pickle
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import probes
from tests.helpers.exit_models import BLOCKS, text, text_model
from tests.helpers.launch import leave


def train(call, model, exits, ids, y, pieces=1):
    parameters = [*model.parameters(), *exits.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        for index, (x, goals) in enumerate(zip(ids.chunk(pieces), y.chunk(pieces), strict=True)):
            with nullcontext() if index == pieces - 1 else call.no_sync():
                call(x)
                (exits.loss(goals) / pieces).backward()
        optimizer.step()
    return [p.detach() for p in parameters]


def main(scenarios):
    ids, y = text(samples=8)
    expected = {}
    for head in {scenario.partition("-")[0] for scenario in scenarios}:
        model = text_model()
        exits = probes.attach_exits(model, BLOCKS, head=head, weights=(0.5, 0.2, 0.3))
        expected[head] = train(model, model, exits, ids, y)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for scenario in scenarios:
        head, _, how = scenario.partition("-")
        model = text_model()
        call = DistributedDataParallel(model, find_unused_parameters=how == "unused")
        if how == "compiled":
            call = torch.compile(call, backend="aot_eager")
        exits = probes.attach_exits(call, BLOCKS, head=head, weights=(0.5, 0.2, 0.3))
        if how == "unpickled":
            exits = pickle.loads(pickle.dumps(exits)).reattach(call)
        pieces = 2 if how == "accumulate" else 1
        found = train(call, model, exits, ids.chunk(2)[rank], y.chunk(2)[rank], pieces)
        torch.testing.assert_close(
            found,
            expected[head],
            rtol=1e-9,
            atol=1e-12,
            msg=lambda text, name=scenario: f"{name}: {text}",
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
    leave()
