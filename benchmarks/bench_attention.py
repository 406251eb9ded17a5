"""What does reading attention cost, in forward passes and training steps?

    python benchmarks/bench_attention.py [--rounds 25] [--quick]

CPU time of the process on one thread; all ways take turns, in alternating order, in one process. A
row is the median of the ratios to its baseline (the first row of each half) within a round, with
their quartiles, and the bar where there is one. About three minutes.
"""

import copy
from collections.abc import Callable

import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.utils import AttentionExtract
from torch import Tensor, nn

import attention
import timing
from networks import random_images, vit6

Work = Callable[[], object]

# The most that a row may cost, in its baseline.
BARS = {"class row, statistics": 1.10, "step, class row, statistics": 1.05}


def main(argv: list[str] | None = None) -> None:
    """Measure transformers on four batches and print ratios."""
    args = timing.parse_args(timing.command_line(__doc__, rounds=25), argv)

    # Title: a model, the number of images, and their size.
    cases: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
        "ViT-6L, 65 tokens, batch 64": (lambda: vit6(10), 64, 32),
        "ViT-6L, 197 tokens, batch 32": (lambda: vit6(10, image=224, patch=16), 32, 224),
        "ViT-Ti of 6 blocks, 197 tokens, batch 8": (vit_tiny, 8, 224),
        # A short pass shows what a capture costs whatever the model: some milliseconds.
        "ViT-6L, 197 tokens, batch 8": (lambda: vit6(10, image=224, patch=16), 8, 224),
    }

    for title, (build, n_images, size) in list(cases.items())[: 1 if args.quick else None]:
        print(title)
        model = build()
        images, labels = random_images(n_images, size)

        for ways in (forward_passes(model, images), training_steps(model, images, labels)):
            print_ratios(ways, rounds=args.rounds)


def print_ratios(ways: dict[str, Work], *, rounds: int) -> None:
    """One row for each way; the first is the baseline, the second what most users call."""
    times = timing.interleaved(ways, rounds=rounds)
    baseline, capture = list(ways)[:2]

    for name in ways:
        print(timing.row(times, name, baseline, bar=BARS.get(name)))

    extra_seconds = np.median(times[capture] - times[baseline])
    print(f"  that is {1e3 * extra_seconds:.1f} ms more")


def vit_tiny() -> nn.Module:
    """Timm's ViT-Ti, cut to six blocks."""
    return timm.create_model("vit_tiny_patch16_224", depth=6, num_classes=10)


def forward_passes(model: nn.Module, images: Tensor) -> dict[str, Work]:
    """A plain forward pass, and ways of reading attention along with it."""
    model.eval()

    # Timm's extractor reads maps from modules, which exist only without the fused kernel.
    unfused_model = copy.deepcopy(model)
    for module in unfused_model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    extractor = AttentionExtract(unfused_model, method="hook")

    @torch.no_grad()
    def plain_forward() -> object:
        return model(images)

    @torch.no_grad()
    def timm_maps() -> object:
        return extractor(images)

    return {
        "forward": plain_forward,
        "class row, statistics": lambda: attention.capture(model, images),
        "class row, statistics and maps": lambda: attention.capture(model, images, maps=True),
        "all rows, mean statistics": lambda: attention.capture(model, images, queries="mean"),
        "sinks": lambda: attention.sinks(model, images),
        "timm extractor, unfused: maps only": timm_maps,
    }


def training_steps(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Work]:
    """A plain training step, and one in which attention is read."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def update(logits: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(logits, labels).backward()
        optimizer.step()

    def plain_step() -> None:
        update(model(images))

    def captured_step() -> None:
        with attention.capturing(model) as recording:
            logits = model(images)

        update(logits)
        recording.dataset()

    return {"training step": plain_step, "step, class row, statistics": captured_step}


if __name__ == "__main__":
    main()
