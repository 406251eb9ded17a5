"""Does weighing the losses of early exits make them better, and do exits beat a coin?

python examples/early_exit.py [--scale cpu] [--data FILE | --periodic] [--output FILE.nc]

Characters of Python's own documentation unless a text is given. --periodic takes two repeated
sentences in their place, as the published study did unawares, and is warned of.
"""

import argparse
from pathlib import Path

import xarray as xr

from lab.data import text, text_report
from lab.results.publish import SCALES, at_least_one, publish
from lab.studies import exit_study
from lab.studies.exit_figures import draw_details, draw_tradeoffs
from lab.training.scales import counted
from lab.training.train_text import Variant, train

ALPHAS = {"smoke": (0.7,), "cpu": (0.3, 0.5, 0.7, 0.9), "paper": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)}
EPOCHS = {"smoke": 3, "cpu": 4, "paper": 10}
CHARACTERS = {"smoke": 40_000, "cpu": None, "paper": None}


def main(argv: list[str] | None = None) -> None:
    """Describe the text, train and analyse the variants, really skip layers, write it all."""
    args = parse_args(argv)
    corpus = text.periodic() if args.periodic else text.load(args.text, most=CHARACTERS[args.scale])
    report = text_report.report(corpus)
    print(text_report.show(report), "\n")
    variants = [Variant("standard"), Variant("deep_supervision")]
    variants += [Variant("asymmetric", alpha) for alpha in ALPHAS[args.scale]]
    variants += [Variant("asymmetric_l2", 0.7)]
    seeds = range(42, 42 + (args.seeds or {"smoke": 1}.get(args.scale, 5)))
    epochs = args.epochs or EPOCHS[args.scale]
    runs = {"epochs": epochs, "cache": args.cache or args.output.parent / "cache"}
    result = exit_study.measure(corpus, variants, seeds, **runs)
    print(exit_study.show(result), "\n")
    model = train(corpus, Variant("asymmetric", 0.7), seed=seeds[0], **runs)
    samples = 4 if args.scale == "smoke" else 64
    tau = exit_study.calibrated(model, corpus)
    print(exit_study.skip(model, corpus, samples=samples, thresholds=(0.8, tau)), "\n")
    figures = {"": draw_tradeoffs(result)} | draw_details(result, model, corpus, tau)
    budget = f"{len(corpus.train)} characters, {counted(epochs, 'epoch')}, "
    budget += counted(len(seeds), "seed")
    whole = xr.merge([result, report], combine_attrs="no_conflicts")
    publish(whole, figures, exit_study.compare(result), output=args.output, budget=budget)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", "--data", type=Path, help="a plain-text file (UTF-8)")
    source.add_argument("--periodic", action="store_true", help="two repeated sentences")
    parser.add_argument("--seeds", type=at_least_one, help="how many seeds, from 42 on")
    parser.add_argument("--epochs", type=at_least_one, help="passes over the training part")
    parser.add_argument("--cache", type=Path, help="trained models; beside the output by default")
    parser.add_argument("--output", type=Path, default=Path("results/early_exit.nc"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
