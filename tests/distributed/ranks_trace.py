"""Run by `test_trace.py`, once in each of two gloo processes."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gradients import Trace, compare, noise
from tests.helpers.launch import leave
from tests.helpers.small_network import make_batch, make_network, two_losses


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    results = {}

    for kind in sys.argv[2].split(","):
        trace, state = train(kind, rank, traced=True)
        _, plain_state = train(kind, rank, traced=False)
        same = [torch.equal(value, plain_state[name]) for name, value in state.items()]
        results[kind] = {"trace": trace.to_dict(), "bitwise": all(same)}

    results["refused"] = refusals()
    results["compared"] = compared(rank)
    results["noise"] = noises(rank)
    results["one-sided"] = one_sided(rank)
    torch.save(results, f"{sys.argv[1]}.{rank}")
    dist.destroy_process_group()


def make_model(kind: str) -> nn.Module:
    model = make_network(dropout=0.0)
    model.eval()  # batch statistics of a half are not those of the whole
    if kind.startswith("ddp"):
        return DistributedDataParallel(model)

    for block in (model.stem, model.late, model):
        fully_shard(block)
    return model


def train(kind: str, rank: int, *, traced: bool):
    model = make_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    options = {"level": "activation", "layers": "drop"} if "activation" in kind else {}
    if kind.startswith("ddp") and "activation" not in kind:
        options = {"noise": True}
    trace = Trace(model, **options)
    n_micro_batches = 2 if "accumulated" in kind else 1

    for step in range(2):
        x, y = (part.chunk(2)[rank] for part in make_batch(seed=step))
        optimizer.zero_grad()

        micro_batches = zip(x.chunk(n_micro_batches), y.chunk(n_micro_batches), strict=True)
        for index, (a, b) in enumerate(micro_batches):
            is_last = index == n_micro_batches - 1
            if kind == "ddp accumulated":
                model.require_backward_grad_sync = is_last
            losses = [loss / n_micro_batches for loss in two_losses(model, a, b)]
            trace.backward(*losses, update=is_last) if traced else sum(losses).backward()
        optimizer.step()

    state = {name: full(p).clone() for name, p in model.named_parameters()}
    return trace.to_dataset(), state


def full(parameter: torch.Tensor) -> torch.Tensor:
    gather = getattr(parameter, "full_tensor", None)
    return (gather() if gather is not None else parameter).detach()


def refusals() -> list[str]:
    texts = []
    attempts = (one_of_two, join_shards, unsynchronised, sharded_late, one_more_shard)
    for attempt in (*attempts, noise_of_one, noise_of_shards, noise_of_unequal_shares):
        try:
            attempt()
        except ValueError as error:
            texts.append(str(error))
    return texts


def one_of_two() -> None:
    model = make_network()
    Trace(model).backward(*two_losses(model, *make_batch()))


def sharded_late() -> None:
    model = make_network()
    trace = Trace(model)
    fully_shard(model)
    trace.backward(*two_losses(model, *make_batch()))


def one_more_shard() -> None:
    model = make_model("fsdp")
    trace = Trace(model)
    model.extra = nn.Linear(2, 2)
    trace.backward(*two_losses(model, *make_batch()))


def compared(rank: int) -> list[float]:
    """Each process by itself, averaged over both, and by the wrapper's group."""
    model = make_network(dropout=0.0).eval()
    wrapped = DistributedDataParallel(model)
    x, y = (part.chunk(2)[rank] for part in make_batch())
    comparisons = [
        compare(model, two_losses(model, x, y), group=None),
        compare(model, two_losses(model, x, y), group=dist.group.WORLD),
        compare(wrapped, two_losses(wrapped, x, y)),
    ]
    return [comparison["cosine_total"].item() for comparison in comparisons]


def noises(rank: int) -> list[tuple[list[float], int]]:
    """As `compared`, of four mini-batches."""
    model = make_network(dropout=0.0).eval()
    wrapped = DistributedDataParallel(model)
    x, y = make_batch(size=32)
    rows = torch.arange(32).view(4, 2, 4)[:, rank].flatten()  # half of each eight
    results = [
        noise(
            network,
            (x[rows], y[rows]),
            lambda a, b, network=network: two_losses(network, a, b),
            samples=None,
            batch_size=4,
            group=group,
        )
        for network, group in ((model, None), (model, dist.group.WORLD), (wrapped, "auto"))
    ]
    return [(one["cosine_total"].values.tolist(), one.attrs["n_samples"]) for one in results]


def one_sided(rank: int) -> float:
    """The auxiliary loss depends on the model in the first process only."""
    model = make_network(dropout=0.0).eval()
    logits, side = model(make_batch()[0])
    auxiliary = side.cos().mean() if rank == 0 else torch.zeros((), dtype=side.dtype)
    losses = (logits + side).square().mean(), auxiliary
    return compare(model, losses, group=dist.group.WORLD)["cosine_total"].item()


def noise_of(model: nn.Module, size: int = 16) -> None:
    losses = lambda x, y: two_losses(model, x, y)  # noqa: E731
    noise(model, make_batch(size), losses, samples=None, batch_size=4)


def noise_of_one() -> None:
    noise_of(make_network())


def noise_of_shards() -> None:
    noise_of(make_model("fsdp"))


def noise_of_unequal_shares() -> None:
    noise_of(make_model("ddp"), size=16 + 4 * dist.get_rank())


def join_shards() -> None:
    model = make_model("fsdp")
    trace = Trace(model)
    trace.join(*two_losses(model, *make_batch()))


def unsynchronised() -> None:
    model = make_model("fsdp")
    model.set_requires_gradient_sync(False)
    trace = Trace(model)
    trace.backward(*two_losses(model, *make_batch()))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
    leave()
