"""Two ranks train a model with early exits and compare with one process and the whole batch.

usage: ranks_exits.py HEAD ...    (started by launch.run_ranks)
"""

import sys

import torch
import torch.distributed as dist
from exit_models import BLOCKS, text, text_model
from torch.nn.parallel import DistributedDataParallel

import probes


def train(call, model, exits, ids, y):
    parameters = [*model.parameters(), *exits.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        call(ids)
        exits.loss(y).backward()
        optimizer.step()
    return [p.detach() for p in parameters]


def main(heads):
    ids, y = text(samples=8)
    expected = {}
    for head in heads:
        model = text_model()
        exits = probes.attach_exits(model, BLOCKS, head=head, weights=(0.5, 0.2, 0.3))
        expected[head] = train(model, model, exits, ids, y)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for head in heads:
        model = text_model()
        wrapped = DistributedDataParallel(model)
        exits = probes.attach_exits(wrapped, BLOCKS, head=head, weights=(0.5, 0.2, 0.3))
        found = train(wrapped, model, exits, ids.chunk(2)[rank], y.chunk(2)[rank])
        torch.testing.assert_close(found, expected[head], rtol=1e-9, atol=1e-12)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
