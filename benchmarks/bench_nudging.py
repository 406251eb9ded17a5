"""What does nudging every block cost? Ratios to one forward pass, and to the naive way.

    python benchmarks/bench_nudging.py [--rounds 7] [--only ViT] [--samples 32] [--quick]

CPU time of the process on one thread; all ways take turns within each round; the median of the
rounds' ratios with the quartiles. The naive way is one forward pass at rest and a full one, with a
hook, for each of L blocks: L + 1 passes. Where only what follows a block is computed, the
unavoidable work is one pass and, for blocks of equal cost, (L - 1) / 2 more and L heads: below
(L + 1) / 2 + 1. It is counted here in operations. The credit is made beforehand, so that it costs
nothing; `first_order` adds a forward and backward pass.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nudging
import timing
from networks import Data, random_images, residual_mlp
from resonance_toolkit import find_layers

STEP = 0.01  # length of a nudge, in root mean squares of the credit: `nudge`'s own default

Work = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A network, its blocks, and how many samples give a pass of about a second."""

    build: Callable[[], nn.Module]
    blocks: str | list[str]
    n_samples: int


def vit() -> nn.Module:
    """Twelve small transformer blocks, 65 tokens."""
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=4, num_classes=10, depth=12
    )


def resnet() -> nn.Module:
    """Eight residual blocks of convolutions."""
    return torchvision.models.resnet18(num_classes=10)


CASES = {
    "ResMLP, 8 blocks of width 256": Case(residual_mlp, [str(i) for i in range(2, 10)], 1024),
    "timm ViT-Ti, 12 blocks": Case(vit, "blocks.*", 64),
    "torchvision ResNet-18, 8 blocks": Case(resnet, "layer[1-4].*", 512),
}


def main(argv: list[str] | None = None) -> None:
    """Print one table per case."""
    args = parse_args(argv)

    for title, case in CASES.items():
        if args.only.lower() not in title.lower():
            continue

        torch.manual_seed(0)
        model = case.build().eval()
        data = random_images(args.samples or case.n_samples)

        ways = make_ways(model, data, case.blocks)
        check_agreement(ways)
        times = timing.interleaved(ways, rounds=args.rounds, warmup=1)

        n_blocks = len(find_layers(model, case.blocks))
        unavoidable = unavoidable_passes(model, data[0][:2], case.blocks)
        print(f"\n{title}: L = {n_blocks}, {len(data[0])} samples")
        print(f"  unavoidable, in operations {unavoidable:6.2f} passes")
        print(f"  (L + 1) / 2 + 1            {(n_blocks + 1) / 2 + 1:6.2f} passes")

        for name in list(ways)[1:]:
            print(f"  {name:<26} {timing.ratio(times, name, 'forward pass')}")
        print(f"  naive / nudge              {timing.ratio(times, 'naive, full passes', 'nudge')}")


def make_ways(model: nn.Module, data: Data, blocks: str | list[str]) -> dict[str, Work]:
    """A forward pass, and ways to nudge every block against a credit that is there already."""
    inputs, targets = data
    state = nudging.observe(model, inputs, targets, blocks)
    directions = nudging.random(0)(state)

    def saved_credit(state: nudging.State) -> dict[str, Tensor]:
        rows = slice(state.first, state.first + len(state))
        return {name: direction[rows] for name, direction in directions.items()}

    def nudge(*, first_order: bool) -> list[float]:
        result = nudging.nudge(
            model,
            data,
            saved_credit,
            blocks,
            samples=None,
            batch_size=len(inputs),
            first_order=first_order,
        )
        return result["loss_change"].values[:, 0].tolist()

    steps = {name: STEP * unit_direction(direction) for name, direction in directions.items()}

    @torch.no_grad()
    def naive() -> list[float]:
        loss_at_rest = F.cross_entropy(model(inputs), targets)

        loss_changes = []
        for name, module in find_layers(model, blocks).items():
            step = steps[name]
            with module.register_forward_hook(lambda _m, _a, output, step=step: output - step):
                loss = F.cross_entropy(model(inputs), targets)
            loss_changes.append((loss - loss_at_rest).item())

        return loss_changes

    @torch.no_grad()
    def forward() -> None:
        model(inputs)

    return {
        "forward pass": forward,
        "nudge": lambda: nudge(first_order=False),
        "nudge, first order too": lambda: nudge(first_order=True),
        "naive, full passes": naive,
    }


def unit_direction(direction: Tensor) -> Tensor:
    """The direction with a root mean square of 1 in every sample."""
    size = direction.flatten(1).square().mean(1).sqrt()
    return direction / size.reshape(-1, *[1] * (direction.dim() - 1))


def check_agreement(ways: dict[str, Work]) -> None:
    """All ways must find the same changes."""
    ours = torch.tensor(ways["nudge"]())
    by_hand = torch.tensor(ways["naive, full passes"]())
    torch.testing.assert_close(ours, by_hand, rtol=1e-2, atol=1e-6)


@torch.no_grad()
def unavoidable_passes(model: nn.Module, inputs: Tensor, blocks: str | list[str]) -> float:
    """Operations of a pass at rest and of what follows each block, in units of a pass."""
    counter = FlopCounterMode(display=False)
    operations_up_to_block: list[int] = []
    hooks = [
        module.register_forward_hook(
            lambda *_: operations_up_to_block.append(counter.get_total_flops())
        )
        for module in find_layers(model, blocks).values()
    ]

    with counter:
        model(inputs)
    for hook in hooks:
        hook.remove()

    total = counter.get_total_flops()
    return 1 + sum(total - before for before in operations_up_to_block) / total


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = timing.command_line(__doc__, rounds=7)
    parser.add_argument("--samples", type=int, help="instead of each case's own number")
    parser.add_argument("--only", default="", help="part of a case's title")
    args = timing.parse_args(parser, argv)

    if args.quick:
        args.only = args.only or "ResMLP"
        args.samples = args.samples or 64
    return args


if __name__ == "__main__":
    main()
