"""Does weighing the losses of early exits make them better, and do exits beat a coin?

python examples/early_exit.py [--scale cpu] [--data FILE | --periodic] [--output FILE.nc]

Characters of Python's own documentation unless a text is given. --periodic takes two repeated
sentences in their place, as the published study did unawares, and is warned of.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import xarray as xr
from matplotlib.figure import Figure

import probes
from lab import exit_study, text, text_report
from lab.character_model import CharacterModel
from lab.report import SCALES, publish
from lab.train_text import Variant, train

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
    figures = {"": tradeoffs(result)} | details(result, model, corpus, tau)
    budget = f"{len(corpus.train)} characters, epochs: {epochs}, seeds: {len(seeds)}"
    whole = xr.merge([result, report], combine_attrs="no_conflicts")
    publish(whole, figures, exit_study.compare(result), output=args.output, budget=budget)


def tradeoffs(result: xr.Dataset) -> Figure:
    """Perplexity against compute for three ways of training."""
    names = ["standard", "asymmetric 0.7", "asymmetric l2 0.7"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained", sharey=True)
    for ax, name in zip(axes, names, strict=True):
        probes.plot_tradeoff(result.sel(variant=name), ax=ax).set_title(name)
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}")
        ax.label_outer()
    return figure


def details(
    result: xr.Dataset, model: CharacterModel, corpus: text.Corpus, tau: float
) -> dict[str, Figure]:
    """Reliability of the exits, and where the characters of a passage left."""
    chosen = result.sel(variant="asymmetric 0.7")
    x, y = text.windows(corpus.validation)
    passage = probes.exit_map(probes.record_exits(model, (x[:10], y[:10]), "layers.*"), tau)
    letters = list(corpus.decode(y[:10].flatten()))
    return {
        "reliability": probes.plot_reliability(chosen).figure,
        "text": probes.plot_exit_text(passage, letters).figure,
    }


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", "--data", type=Path, help="a plain-text file (UTF-8)")
    source.add_argument("--periodic", action="store_true", help="two repeated sentences")
    parser.add_argument("--seeds", type=int, help="how many seeds, from 42 on")
    parser.add_argument("--epochs", type=int, help="passes over the training part")
    parser.add_argument("--cache", type=Path, help="trained models; beside the output by default")
    parser.add_argument("--output", type=Path, default=Path("results/early_exit.nc"))
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
