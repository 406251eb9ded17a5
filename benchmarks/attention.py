"""What reading attention costs, in forward passes and training steps.

    OMP_NUM_THREADS=1 python benchmarks/attention.py

CPU time of the process on one thread; all candidates take turns, in alternating order, in one
process. A row is the median of the ratios to its baseline within a round, with their quartiles.
"""

# ruff: noqa: E402  (the path must be put right before anything is imported)
import argparse
import copy
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

# This file is called like the package that it measures, and lies in the first place to look.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "examples")

import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.utils import AttentionExtract
from torch import Tensor, nn

import attention
from lab.backbones import vit6

Work = Callable[[], object]
BARS = {"class row, statistics": 1.10, "training step, class row, statistics": 1.05}


def main(argv: list[str] | None = None) -> None:
    """Measure two transformers and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, timm {timm.__version__}, {platform.machine()}, 1 thread")
    models = {
        "ViT-6L, 65 tokens, batch 64": (vit6(10), image(64, 32)),
        "ViT-6L, 197 tokens, batch 8": (vit6(10, image=224, patch=16), image(8, 224)),
    }
    for title, (model, x) in models.items():
        print(title)
        for baseline, candidates in (forward_passes(model, x), training_steps(model, x)):
            for name, ratios in compare(baseline, candidates, args.rounds).items():
                low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
                bar = f"   bar {BARS[name]:.2f}" if name in BARS else ""
                print(f"  {name:40} {middle:5.2f} [{low:.2f}, {high:.2f}]{bar}")


def image(samples: int, size: int) -> Tensor:
    """Random images."""
    return torch.randn(samples, 3, size, size)


def forward_passes(model: nn.Module, x: Tensor) -> tuple[Work, dict[str, Work]]:
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

    return plain, {
        "forward": plain,
        "class row, statistics": lambda: attention.capture(model, x),
        "class row, statistics and maps": lambda: attention.capture(model, x, maps=True),
        "all rows, mean statistics": lambda: attention.capture(model, x, queries="mean"),
        "timm AttentionExtract, unfused, maps only": timm_hook,
    }


def training_steps(model: nn.Module, x: Tensor) -> tuple[Work, dict[str, Work]]:
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

    return plain, {"training step": plain, "training step, class row, statistics": captured}


def compare(baseline: Work, candidates: dict[str, Work], rounds: int) -> dict[str, list[float]]:
    """Ratios of CPU time to the baseline's in the same round."""
    for work in candidates.values():
        work()
    ratios: dict[str, list[float]] = {name: [] for name in candidates}
    for index in range(rounds):
        order = list(candidates)[:: 1 if index % 2 else -1]
        unit = measure(baseline)
        times = {name: measure(candidates[name]) for name in order}
        unit = (unit + measure(baseline)) / 2
        for name, seconds in times.items():
            ratios[name].append(seconds / unit)
    return ratios


def measure(work: Work) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
