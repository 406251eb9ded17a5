"""What reading attention costs, in forward passes and training steps.

    python benchmarks/attention.py [--rounds 25]

CPU time of the process on one thread; all candidates take turns, in alternating order, in one
process. A row is the median of the ratios to its baseline (the first row of each half) within a
round, with their quartiles, and the bar where there is one. About three minutes.
"""

import argparse
import copy
from collections.abc import Callable

import numpy as np
import timing
import timm
import torch
import torch.nn.functional as F
from timm.utils import AttentionExtract
from torch import Tensor, nn

import attention
from lab.backbones.asymmetric_paper import vit6

Work = Callable[[], object]
BARS = {"class row, statistics": 1.10, "step, class row, statistics": 1.05}


def main(argv: list[str] | None = None) -> None:
    """Measure transformers on four batches and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(timing.machine(args.rounds))
    tiny = timm.create_model("vit_tiny_patch16_224", depth=6, num_classes=10)
    models = {
        "ViT-6L, 65 tokens, batch 64": (vit6(10), image(64, 32)),
        "ViT-6L, 197 tokens, batch 32": (vit6(10, image=224, patch=16), image(32, 224)),
        "ViT-Ti of 6 blocks, 197 tokens, batch 8": (tiny, image(8, 224)),
        # A short pass shows what a capture costs whatever the model: some milliseconds.
        "ViT-6L, 197 tokens, batch 8": (vit6(10, image=224, patch=16), image(8, 224)),
    }
    for title, (model, x) in models.items():
        print(title)
        for ways in (forward_passes(model, x), training_steps(model, x)):
            times = timing.interleaved(ways, rounds=args.rounds)
            first, own = list(ways)[:2]
            for name in ways:
                print(timing.row(times, name, first, bar=BARS.get(name)))
            print(f"  that is {1e3 * np.median(times[own] - times[first]):.1f} ms more")


def image(samples: int, size: int) -> Tensor:
    """Random images."""
    return torch.randn(samples, 3, size, size)


def forward_passes(model: nn.Module, x: Tensor) -> dict[str, Work]:
    """A plain forward pass, and ways of reading attention along with it."""
    model.eval()
    unfused = copy.deepcopy(model)
    for module in unfused.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    peer = AttentionExtract(unfused, method="hook")

    @torch.no_grad()
    def plain() -> object:
        return model(x)

    @torch.no_grad()
    def timm_hook() -> object:
        return peer(x)

    return {
        "forward": plain,
        "class row, statistics": lambda: attention.capture(model, x),
        "class row, statistics and maps": lambda: attention.capture(model, x, maps=True),
        "all rows, mean statistics": lambda: attention.capture(model, x, queries="mean"),
        "timm extractor, unfused: maps only": timm_hook,
    }


def training_steps(model: nn.Module, x: Tensor) -> dict[str, Work]:
    """A plain training step, and one in which attention is read."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    y = torch.arange(len(x)) % 10

    def update(output: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(output, y).backward()
        optimizer.step()

    def plain() -> None:
        update(model(x))

    def captured() -> None:
        with attention.capturing(model) as recording:
            output = model(x)
        update(output)
        recording.dataset()

    return {"training step": plain, "step, class row, statistics": captured}


if __name__ == "__main__":
    main()
