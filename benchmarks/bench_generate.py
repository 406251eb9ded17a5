"""What skipping layers saves in time, beside what the formula and the count of operations promise.

    python benchmarks/generate.py [--rounds 9]

CPU time of the process on one thread; all candidates take turns in one process. A row is the median
of the ratios to decoding without exits, with their quartiles. Models are random; the threshold is
the quantile of the confidence that lets the stated share of tokens leave after the first exit.
"""

import argparse
from functools import partial

import timing
import torch
import xarray as xr
from torch import Tensor

import probes
from lab.backbones.character_model import CharacterModel

TOKENS, PROMPT = 48, 16


def main(argv: list[str] | None = None) -> None:
    """Decode with three models at several exit rates and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(timing.machine(args.rounds))
    models = {
        "the study's: 3 layers of width 64, 100 characters": (100, 64, 3, 4),
        "12 layers of width 256, 100 characters": (100, 256, 12, 8),
        "12 layers of width 256, 50,000 tokens": (50_000, 256, 12, 8),
    }
    for title, (vocabulary, width, depth, heads) in models.items():
        torch.manual_seed(0)
        model = CharacterModel(vocabulary, width=width, depth=depth, heads=heads)
        prompt = torch.randint(vocabulary, (1, PROMPT))
        follow = torch.randint(vocabulary, (1, TOKENS))
        print(title, f"{'':<22} formula  counted  measured", sep="\n")
        compare(model, prompt, follow, args.rounds)


def compare(model: CharacterModel, prompt: Tensor, follow: Tensor, rounds: int) -> None:
    """Time decoding without exits, and with a third of the depth as an exit."""
    decode = partial(probes.generate, model, prompt, TOKENS, follow=follow)
    leave = {"layers": f"layers.{len(model.layers) // 3 - 1}"}
    confidence = decode(**leave, threshold=0.0, skipped="recompute")["confidence"]
    ways = {"no exits": decode}
    for share in (0.0, 0.5, 0.9, 1.0):
        for skipped in ("propagate", "recompute"):
            threshold = 2.0 if share == 0 else float(confidence.quantile(1 - share))
            settings = leave | {"threshold": threshold, "skipped": skipped}
            ways[f"{share:>4.0%} leave, {skipped}"] = partial(decode, **settings)
    found: dict[str, xr.Dataset] = {name: way() for name, way in ways.items()}
    times = timing.interleaved(ways, rounds=rounds, warmup=1)
    for name, result in found.items():
        numbers = (float(result[key]) for key in ("compute", "compute_with_head"))
        print(
            f"  {name:22}", *(f"{n:7.2f} " for n in numbers), timing.ratio(times, name, "no exits")
        )


if __name__ == "__main__":
    main()
