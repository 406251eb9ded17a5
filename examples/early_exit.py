"""Does weighing the losses of early exits make them better, and do exits beat a coin?

    python examples/early_exit.py [--scale cpu] [--data FILE | --periodic] [--output FILE.nc]

Characters of Python's own documentation unless a text is given. --periodic takes two repeated
sentences in their place, as the published study did unawares, and is warned of.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

import xarray as xr

from lab.data import text, text_report
from lab.results.options import SCALES, add_show_recipe, at_least_one, exit_showing
from lab.results.publish import publish
from lab.studies.exit_figures import draw_details, draw_tradeoffs
from lab.studies.exit_study import ONE_LAYER, compare_variants, measure_variants
from lab.studies.exit_tables import calibrate_threshold, show_baselines, show_decoding
from lab.training.scales import plural
from lab.training.train_text import TextRecipe, Variant, train_text_model

ALPHAS = {"smoke": (0.7,), "cpu": (0.3, 0.5, 0.7, 0.9), "paper": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)}
EPOCHS = {"smoke": 3, "cpu": 4, "paper": 10}
SEEDS = {"smoke": 1, "cpu": 5, "paper": 5}
CHARACTERS = {"smoke": 40_000, "cpu": None, "paper": None}
DECODED = {"smoke": 4, "cpu": 64, "paper": 64}  # windows read with layers really skipped


def main(argv: list[str] | None = None) -> None:
    """Describe the text, train and analyse the variants, really skip layers, write it all."""
    args = parse_args(argv)
    epochs = args.epochs or EPOCHS[args.scale]
    seeds = range(42, 42 + (args.seeds or SEEDS[args.scale]))
    variants = [
        Variant("standard"),
        Variant("deep_supervision"),
        *(Variant("asymmetric", alpha) for alpha in ALPHAS[args.scale]),
        Variant("asymmetric_l2", 0.7),
    ]
    if args.show_recipe:
        recipes = [asdict(TextRecipe(seed=seed, epochs=epochs)) for seed in seeds]
        trained = [*variants, ONE_LAYER]
        exit_showing([asdict(variant) | recipe for variant in trained for recipe in recipes])

    corpus = load_corpus(args)
    report = text_report.report(corpus)
    print(text_report.show(report), "\n")

    cache = args.cache or args.output.parent / "cache"
    result = measure_variants(corpus, variants, seeds, epochs=epochs, cache=cache)
    print(show_baselines(result), "\n")

    # One model, from the cache, reads text with layers really skipped.
    recipe = TextRecipe(seed=seeds[0], epochs=epochs)
    model = train_text_model(corpus, Variant("asymmetric", 0.7), recipe, cache=cache)
    tau = calibrate_threshold(model, corpus)
    samples = DECODED[args.scale]
    print(show_decoding(model, corpus, samples=samples, thresholds=(0.8, tau)), "\n")

    figures = {"": draw_tradeoffs(result)} | draw_details(result, model, corpus, tau)
    budget = f"{len(corpus.train)} characters, {plural(epochs, 'epoch')}, "
    budget += plural(len(seeds), "seed")
    described = xr.merge([result, report], combine_attrs="no_conflicts")
    publish(described, figures, compare_variants(result), output=args.output, budget=budget)


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
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
    add_show_recipe(parser)
    return parser.parse_args(argv)


def load_corpus(args: argparse.Namespace) -> text.Corpus:
    """Load the text that was asked for."""
    if args.periodic:
        return text.periodic()
    return text.load(args.text, limit=CHARACTERS[args.scale])


if __name__ == "__main__":
    main()
