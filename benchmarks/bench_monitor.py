"""What a monitor costs a training, at its defaults: the ratio to the same training without it.

    python benchmarks/bench_monitor.py

Two costs make up the third: updates between two rows, where the monitor has its hooks on the model
and does nothing, and one with a row (gradients, branches, attention, the file) in each hundred.
"""

import argparse
import copy
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import probes
import timing
from networks import cnn, random_images, vit6
from resonance_toolkit import Monitor

EVERY = 100  # the default
STRETCH = 4  # updates that are timed together
MOST = 1.02


def main(argv: list[str] | None = None) -> None:
    """Print a table for each network."""
    args = parse_args(argv)
    cases = {
        "MLP, 4 layers": (mlp(10), "[1357]"),
        "CNN, 6 convolutions": (cnn(10), "features.*"),
        "ViT-6L": (vit6(10), "blocks.*"),
    }
    if args.quick:
        cases = dict(list(cases.items())[:1])

    data = random_images(args.batch)
    for title, (model, layers) in cases.items():
        print(f"\n{title}, batches of {args.batch}, 20 branches at each layer, every={EVERY}")
        measure(model, layers, data, rounds=args.rounds)


def measure(model: nn.Module, layers: str, data: tuple[Tensor, Tensor], *, rounds: int) -> None:
    """Time updates without a monitor, with one between two rows, and with one that takes a row."""
    plain, watched = (Training(copy.deepcopy(model), layers, data) for _ in range(2))

    with tempfile.TemporaryDirectory() as folder:
        monitor = Monitor(
            watched.model,
            probe=watched.probe,
            data=data,
            log=_forget,
            path=Path(folder) / "monitor.jsonl",
        )

        def train(updates: int, *, first: int) -> None:
            monitor.step = first
            watched.train(updates, monitor.backward)

        ways = {
            "plain": lambda: plain.train(STRETCH, _add_and_backward),
            "between two rows": lambda: train(STRETCH, first=1),
            "with a row": lambda: train(1, first=0),
        }
        times = timing.interleaved(ways, rounds=rounds)

    # Seconds for one update each, and for the mean update of a training.
    for way in ("plain", "between two rows"):
        times[way] = times[way] / STRETCH
    times["a whole training"] = (
        times["between two rows"] * (EVERY - 1) + times["with a row"]
    ) / EVERY

    print(timing.row(times, "between two rows", "plain"))
    print(timing.row(times, "with a row", "plain"))
    print(timing.row(times, "a whole training", "plain", bar=MOST))
    row_cost = np.median(times["with a row"] - times["plain"])
    print(
        f"  an update takes {1000 * np.median(times['plain']):.1f} ms, a row {1000 * row_cost:.1f}"
    )

    # Noise of the machine is in every update alike: what a row adds is known better than the sum.
    print(f"  rows alone: {100 * row_cost / EVERY / np.median(times['plain']):.2f} % of a training")


class Training:
    """One training; its learning rate is zero, so that all updates cost alike."""

    def __init__(self, model: nn.Module, layers: str, data: tuple[Tensor, Tensor]) -> None:
        self.model = model
        self.inputs, self.targets = data
        self.probe = probes.attach(model, layers=layers, n=20, alpha=0.1, sample=data[0][:2])
        parameters = [*model.parameters(), *self.probe.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=0.0)

    def train(self, updates: int, backward: Callable[[Tensor, Tensor], None]) -> None:
        """Make some updates."""
        for _ in range(updates):
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(self.inputs), self.targets)
            backward(loss, self.probe.loss(self.targets))
            self.optimizer.step()


def mlp(classes: int) -> nn.Sequential:
    """Four layers of width 256 on flat images."""
    widths = [3 * 32 * 32, 256, 256, 256, 256]
    hidden = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(widths[-1], classes))


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = timing.command_line(__doc__, rounds=9)
    parser.add_argument("--batch", type=int, default=64)
    return timing.parse_args(parser, argv)


def _add_and_backward(main_loss: Tensor, auxiliary_loss: Tensor) -> None:
    (main_loss + auxiliary_loss).backward()


def _forget(values: object, step: int) -> None:
    """Only the time counts: a logger's own time is the user's choice."""


if __name__ == "__main__":
    main()
