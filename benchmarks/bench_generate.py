"""What does skipping layers save in time, beside what the formula and the operations promise?

    python benchmarks/bench_generate.py [--rounds 9] [--quick]

CPU time of the process on one thread; all ways take turns in one process. A row is the median of
the ratios to decoding without exits, with their quartiles. Models are random; the threshold is the
quantile of the confidence that lets the stated share of tokens leave after the first exit.
"""

from functools import partial

import torch
from torch import Tensor

import probes
import timing
from decoder import Decoder

N_PROMPT = 16  # tokens that are given
N_TOKENS = 48  # tokens that are decoded

# Title: vocabulary, width, depth, heads.
CASES = {
    "the study's: 3 layers of width 64, 100 characters": (100, 64, 3, 4),
    "12 layers of width 256, 100 characters": (100, 256, 12, 8),
    "12 layers of width 256, 50,000 tokens": (50_000, 256, 12, 8),
}


def main(argv: list[str] | None = None) -> None:
    """Decode with three models at several exit rates and print ratios."""
    args = timing.parse_args(timing.command_line(__doc__, rounds=9), argv)

    for title, sizes in list(CASES.items())[: 1 if args.quick else None]:
        vocabulary, width, depth, heads = sizes
        torch.manual_seed(0)
        model = Decoder(vocabulary, width=width, depth=depth, heads=heads)
        prompt = torch.randint(vocabulary, (1, N_PROMPT))
        follow = torch.randint(vocabulary, (1, N_TOKENS))

        print(title)
        print(f"{'':<22} formula  counted  measured")
        compare_decoding(model, prompt, follow, args.rounds)


def compare_decoding(model: Decoder, prompt: Tensor, follow: Tensor, rounds: int) -> None:
    """Time decoding without exits, and with one exit after a third of the layers."""
    exit_layer = f"layers.{len(model.layers) // 3 - 1}"

    # `follow` fixes the tokens: every way decodes the same text, whatever its exits predict.
    decode = partial(probes.generate, model, prompt, N_TOKENS, follow=follow)
    decode_with_exit = partial(decode, layers=exit_layer)

    # A threshold of 0 lets every token leave, so that every token has a confidence at the exit.
    confidence = decode_with_exit(threshold=0.0, skipped="recompute")["confidence"]

    ways = {"no exits": decode}
    for share in (0.0, 0.5, 0.9, 1.0):
        # No confidence reaches 2: nobody leaves.
        threshold = 2.0 if share == 0 else float(confidence.quantile(1 - share))

        for skipped in ("propagate", "recompute"):
            way = partial(decode_with_exit, threshold=threshold, skipped=skipped)
            ways[f"{share:>4.0%} leave, {skipped}"] = way

    results = {name: way() for name, way in ways.items()}
    times = timing.interleaved(ways, rounds=rounds, warmup=1)

    for name, result in results.items():
        formula = float(result["compute"])
        counted = float(result["compute_with_head"])
        measured = timing.ratio(times, name, "no exits")
        print(f"  {name:22} {formula:7.2f}  {counted:7.2f}  {measured}")


if __name__ == "__main__":
    main()
