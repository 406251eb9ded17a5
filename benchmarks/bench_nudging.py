"""What does nudging every block cost? Ratios to one forward pass, and to the naive way.

Run: python benchmarks/nudging.py [--rounds 7] [--only ViT] [--samples 32]

One thread, CPU time of the process, all ways in turn within each round; the median of the rounds'
ratios with the quartiles. The naive way is one forward pass at rest and a full one, with a hook,
for each of L blocks: L + 1 passes. Where only what follows a block is computed, the unavoidable
work is one pass and, for blocks of equal cost, (L - 1) / 2 more and L heads: below (L + 1) / 2 + 1.
It is counted here in operations. The credit is given, so that it costs nothing; `first_order`
adds a forward and backward pass.
"""

import argparse
from collections.abc import Callable
from typing import Any

import timing
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nudging
from resonance_toolkit import find_layers

Data = tuple[Tensor, Tensor]


class Block(nn.Module):
    """Pre-norm residual block of two square matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The skip is part of the output."""
        return h + self.second(F.gelu(self.first(self.norm(h))))


def resmlp() -> nn.Module:
    """Eight residual blocks of width 256."""
    blocks = [Block(256) for _ in range(8)]
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), *blocks, nn.Linear(256, 10))


def vit() -> nn.Module:
    """Twelve small transformer blocks, 65 tokens."""
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10, depth=12
    )


def resnet() -> nn.Module:
    """Eight residual blocks of convolutions."""
    return torchvision.models.resnet18(num_classes=10)


CASES: dict[str, tuple[Callable[[], nn.Module], Any, int]] = {
    "ResMLP, 8 blocks of width 256": (resmlp, [str(i) for i in range(2, 10)], 1024),
    "timm ViT-Ti, 12 blocks": (vit, "blocks.*", 64),
    "torchvision ResNet-18, 8 blocks": (resnet, "layer[1-4].*", 512),
}


def main(argv: list[str] | None = None) -> None:
    """Print one table per case."""
    args = parse_args(argv)
    torch.set_num_threads(1)
    print(timing.machine(args.rounds))
    for title, (build, blocks, samples) in CASES.items():
        if args.only.lower() not in title.lower():
            continue
        torch.manual_seed(0)
        model = build().eval()
        samples = args.samples or samples
        data = torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,))
        count = len(find_layers(model, blocks))
        ways = make_ways(model, data, blocks)
        check(ways)
        times = timing.interleaved(ways, rounds=args.rounds, warmup=1)
        print(f"\n{title}: L = {count}, {samples} samples")
        print(f"  unavoidable, in operations {operations(model, data[0][:2], blocks):6.2f} passes")
        print(f"  (L + 1) / 2 + 1            {(count + 1) / 2 + 1:6.2f} passes")
        for name in list(ways)[1:]:
            print(f"  {name:<26} {timing.ratio(times, name, 'forward pass')}")
        print(f"  naive / nudge              {timing.ratio(times, 'naive, full passes', 'nudge')}")


def make_ways(model: nn.Module, data: Data, blocks: Any) -> dict[str, Callable[[], Any]]:
    """A forward pass, and ways to nudge every block against a credit that is there already."""
    x, y = data
    state = nudging.observe(model, x, y, blocks)
    given = nudging.random(0)(state)
    size = {n: a.flatten(1).square().mean(1).sqrt() for n, a in given.items()}
    steps = {n: a / size[n].reshape(-1, *[1] * (a.dim() - 1)) for n, a in given.items()}

    def credit(state: nudging.State) -> dict[str, Tensor]:
        rows = slice(state.first, state.first + len(state))
        return {name: value[rows] for name, value in given.items()}

    def nudge(first_order: bool) -> list[float]:
        found = nudging.nudge(
            model, data, credit, blocks, samples=None, batch_size=len(x), first_order=first_order
        )
        return found["loss_change"].values[:, 0].tolist()

    @torch.no_grad()
    def naive() -> list[float]:
        rest = F.cross_entropy(model(x), y)
        changes = []
        for name, module in find_layers(model, blocks).items():
            step = 0.01 * steps[name]
            with module.register_forward_hook(lambda _m, _a, out, step=step: out - step):
                changes.append((F.cross_entropy(model(x), y) - rest).item())
        return changes

    @torch.no_grad()
    def forward() -> None:
        model(x)

    return {
        "forward pass": forward,
        "nudge": lambda: nudge(first_order=False),
        "nudge, first order too": lambda: nudge(first_order=True),
        "naive, full passes": naive,
    }


def check(ways: dict[str, Callable[[], Any]]) -> None:
    """All ways must find the same changes."""
    ours, theirs = (torch.tensor(ways[n]()) for n in ("nudge", "naive, full passes"))
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-6)


@torch.no_grad()
def operations(model: nn.Module, x: Tensor, blocks: Any) -> float:
    """Operations of a pass at rest and of what follows each block, in passes."""
    counter, done = FlopCounterMode(display=False), list[int]()
    hooks = [
        module.register_forward_hook(lambda *_: done.append(counter.get_total_flops()))
        for module in find_layers(model, blocks).values()
    ]
    with counter:
        model(x)
    for hook in hooks:
        hook.remove()
    whole = counter.get_total_flops()
    return 1 + sum(whole - before for before in done) / whole


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--samples", type=int, help="instead of each case's own number")
    parser.add_argument("--only", default="", help="part of a case's title")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
