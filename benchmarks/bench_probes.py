"""What do branches cost? ViT-6L, batch 128, 100 classes, 6 attachment points.

    python benchmarks/probes.py [--rounds 15]

One thread, CPU time, all ways in turn; median of the rounds' ratios with quartiles. The unavoidable
work of exact static branches is two matrix products: features to logits, and back.
"""

import argparse
from collections.abc import Callable

import timing
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probes
from lab.backbones.asymmetric_paper import LAYERS, vit6

BATCH, CLASSES, WIDTH, POINTS = 128, 100, 128, 6


def main(argv: list[str] | None = None) -> None:
    """Print the ratios of losses and of whole training steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args(argv).rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(timing.machine(rounds))
    ways = losses()
    times = timing.interleaved(ways, rounds=rounds)
    show = timing.ratio
    print("\nthe auxiliary loss and its gradient at all six points, n = 300")
    print("  separate nn.Linear heads / exact      ", show(times, "separate", "exact"), "(>= 2.5)")
    print("  exact / two matrix products           ", show(times, "exact", "matmuls"), "(<= 1.8)")
    print("  compressed n=300 / compressed n=1     ", show(times, "compressed", "one"), "(<= 1.1)")
    print("  exact / compressed                    ", show(times, "exact", "compressed"))
    peaks = {name: timing.peak_bytes(ways[name]) for name in ("separate", "exact", "compressed")}
    for name, peak in peaks.items():
        share = peak / peaks["separate"]
        print(f"  peak extra memory, {name:19s} {peak / 2**20:8.1f} MiB, {share:.3f} of separate")
    times = timing.interleaved(steps(), rounds=rounds, warmup=1)
    print("\na training step (AdamW) over one without branches")
    print("  exact n=20                        ", show(times, "exact 20", "plain"), "(<= 1.06)")
    print("  compressed n=300                  ", show(times, "compressed", "plain"), "(<= 1.08)")
    print("  exact n=300                       ", show(times, "exact 300", "plain"))


def losses() -> dict[str, Callable[[], object]]:
    """Ways to make the loss and the gradient of the features, the backbone left out."""
    features = [torch.randn(BATCH, WIDTH, requires_grad=True) for _ in range(POINTS)]
    y = torch.randint(0, CLASSES, (BATCH,))
    target = F.one_hot(y, CLASSES).float()
    stacks = {
        (method, n): [_branches(method, n) for _ in range(POINTS)]
        for method, n in (("exact", 300), ("compressed", 300), ("compressed", 1))
    }
    heads = [[_linear(w) for w in torch.cat(list(b.chunks()))] for b in stacks["exact", 300]]
    flat = [b.static.flatten(0, 1) for b in stacks["exact", 300]]

    def stacked(key: tuple[str, int]) -> Callable[[], object]:
        def work() -> object:
            total = torch.stack([b.loss(h, y) for b, h in zip(stacks[key], features, strict=True)])
            active = [b.active for b in stacks[key]]
            return torch.autograd.grad(total.sum(), [*features, *active])

        return work

    def separate() -> object:
        parts = [
            F.binary_cross_entropy_with_logits(head(h), target)
            for layer, h in zip(heads, features, strict=True)
            for head in layer
        ]
        active = [layer[-1].weight for layer in heads]
        return torch.autograd.grad(torch.stack(parts).sum(), [*features, *active])

    def matmuls() -> object:
        with torch.no_grad():
            return [h @ w.mT @ w for h, w in zip(features, flat, strict=True)]

    return {
        "separate": separate,
        "exact": stacked(("exact", 300)),
        "compressed": stacked(("compressed", 300)),
        "one": stacked(("compressed", 1)),
        "matmuls": matmuls,
    }


def steps() -> dict[str, Callable[[], object]]:
    """Whole training steps of the backbone, each on a copy of its own."""
    x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))
    return {
        "plain": _step(x, y, 0, "exact"),
        "exact 20": _step(x, y, 20, "exact"),
        "compressed": _step(x, y, 300, "compressed"),
        "exact 300": _step(x, y, 300, "exact"),
    }


def _step(x: Tensor, y: Tensor, n: int, method: str) -> Callable[[], object]:
    torch.manual_seed(0)
    model = vit6(CLASSES)
    probe = probes.attach(model, LAYERS["vit6"], n=n, method=method) if n else None
    optimizer = torch.optim.AdamW([*model.parameters(), *(probe.parameters() if probe else ())])

    def work() -> None:
        loss = F.cross_entropy(model(x), y)
        if probe is not None:
            loss = loss + probe.loss(y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return work


def _branches(method: str, n: int) -> nn.Module:
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, CLASSES))
    probe = probes.attach(model, "0", n=n, method=method)
    return probe.branches["at_0"]


def _linear(weight: Tensor) -> nn.Linear:
    head = nn.Linear(WIDTH, CLASSES, bias=False)
    head.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    return head


if __name__ == "__main__":
    main()
