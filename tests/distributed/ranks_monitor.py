"""Run by `test_monitor.py`, once in each of two gloo processes: `ranks_monitor.py FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from resonance_toolkit import Monitor
from tests.helpers.launch import leave
from tests.resonance_toolkit.front.monitor.training import make_batch, make_model


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for kind in ("ddp", "fsdp"):
        logged, tree, state = train(kind, rank, folder)
        _, _, plain = train(kind, rank, None)
        result = {
            "logged": logged,
            "nodes": {part: node.to_dataset().to_dict() for part, node in tree.children.items()},
            "attributes": dict(tree.attrs),
            "is_bitwise": all(torch.equal(state[name], plain[name]) for name in plain),
        }
        torch.save(result, folder / f"{kind}.{rank}")
    dist.destroy_process_group()


def train(kind: str, rank: int, folder: Path | None):
    """Two updates; without a folder, nobody watches."""
    model = make_model().eval()  # batch statistics of a half are not those of the whole
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        for part in (*model.blocks, model):
            fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    logged, monitor = [], None
    if folder is not None:
        monitor = Monitor(
            model,
            layers="head",
            every=1,
            data=make_batch(9),
            log=lambda values, step: logged.append(step),
            path=folder / f"{kind}.jsonl",
        )
    for step in range(2):
        x, y = (part.chunk(2)[rank] for part in make_batch(step))
        out = model(x)
        losses = F.cross_entropy(out, y), out.square().mean()
        sum(losses).backward() if monitor is None else monitor.backward(*losses)
        optimizer.step()
        optimizer.zero_grad()

    values = {name: value.detach() for name, value in model.state_dict().items()}
    state = {n: v.to_local() if hasattr(v, "to_local") else v for n, v in values.items()}
    return logged, None if monitor is None else monitor.tree(), state


if __name__ == "__main__":
    main()
    leave()
