"""What exits cost: in training beside the same objective by hand, in analysis beside a bare pass.

    python benchmarks/exits.py [--rounds 9]

CPU time of the process on one thread; all candidates take turns in one process. A row is the median
of the ratios, with their quartiles.
"""

import argparse
from functools import partial

import timing
import torch
import torch.nn.functional as F
from torch import Tensor

import probes
from lab.backbones.character_model import CharacterModel

LAYERS = ["layers.0", "layers.2"]


def main(argv: list[str] | None = None) -> None:
    """Train and analyse with a small and a large vocabulary, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(timing.machine(args.rounds))
    for vocabulary, samples in ((100, 64), (20_000, 8)):
        torch.manual_seed(0)
        model = CharacterModel(vocabulary, width=64, depth=3, heads=4)
        ids = torch.randint(vocabulary, (samples, 65))
        print(f"3 layers of width 64, {vocabulary:,} classes, {samples} x 64 tokens")
        train(model, ids[:, :-1], ids[:, 1:], args.rounds)
        analyse(model, ids[:, :-1], ids[:, 1:], args.rounds)


def train(model: CharacterModel, x: Tensor, y: Tensor, rounds: int) -> None:
    """A forward and a backward pass: the model alone, two losses by hand, the same by exits."""
    model.train()
    both = probes.attach_exits(model, LAYERS, weights=(0.7, 0.3))
    both.detach()

    def alone() -> None:
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()

    def by_hand() -> None:
        kept: list[Tensor] = []
        layer = model.get_submodule(LAYERS[0])
        with layer.register_forward_hook(lambda _, __, output: kept.append(output)):
            deep = model(x)
        shallow = F.cross_entropy(model.head(kept[0]).flatten(0, 1), y.flatten())
        (0.7 * shallow + 0.3 * F.cross_entropy(deep.flatten(0, 1), y.flatten())).backward()

    def by_exits(exits: probes.Exits) -> None:
        with exits.reattach(model):
            model(x)
            exits.loss(y).backward()

    standard = probes.attach_exits(model, LAYERS, weights="standard")
    standard.detach()
    ways = {
        "the model's own loss": alone,
        "the same by exits": partial(by_exits, standard),
        "two losses by hand": by_hand,
        "two losses by exits": partial(by_exits, both),
    }
    times = timing.interleaved(ways, rounds=rounds)
    print(timing.row(times, "the same by exits", "the model's own loss", bar=1.1))
    print(timing.row(times, "two losses by exits", "two losses by hand", bar=1.1))
    model.zero_grad()


def analyse(model: CharacterModel, x: Tensor, y: Tensor, rounds: int) -> None:
    """A record of both exits, beside a bare pass and beside the logits and one softmax of each."""
    model.eval()

    @torch.no_grad()
    def bare() -> None:
        model(x)

    @torch.no_grad()
    def two_softmaxes() -> None:
        kept: list[Tensor] = []
        layer = model.get_submodule(LAYERS[0])
        with layer.register_forward_hook(lambda _, __, output: kept.append(output)):
            deep = model(x)
        for logits in (model.head(kept[0]), deep):
            logits.flatten(0, 1).softmax(-1).max(-1)
            F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")

    ways = {
        "a bare pass": bare,
        "pass, two heads, softmax, loss": two_softmaxes,
        "record_exits": partial(probes.record_exits, model, (x, y), LAYERS),
    }
    times = timing.interleaved(ways, rounds=rounds)
    print(timing.row(times, "pass, two heads, softmax, loss", "a bare pass"))
    print(timing.row(times, "record_exits", "a bare pass"))
    print(timing.row(times, "record_exits", "pass, two heads, softmax, loss", bar=1.5))


if __name__ == "__main__":
    main()
