"""Which recipe does the paper's plain MLP on CIFAR-10 come from? (what the paper leaves out)

    python examples/recipe_calibration.py --scale paper --data cifar10.npz [--page docs/recipe.md]

The paper names neither optimizer, batch, schedule nor augmentation for its CIFAR runs. The plain
MLP, of which it has two numbers on all of CIFAR-10 (49.5 in table 12, 53.5 in tables 9 and 13),
under each assumption: constant rate or cosine, batches of 128, 256 and 512; and, with `--lr`,
other rates. Prints last and best epoch, and training accuracy less test accuracy. `--page` puts
the table between its marks on that page.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from lab.results.files import is_first_process, write_atomically
from lab.results.options import arguments, at_least_one, exit_showing
from lab.results.publish import publish
from lab.results.statistics import mean_interval
from lab.results.verdicts import Published, Row, compare, format_here, format_published
from lab.studies.conditions import conditions_of, obstacles, published_conditions
from lab.studies.executing import executing
from lab.studies.study import PROTOCOLS, accuracy_of
from lab.studies.sweep import sweep
from lab.training.recipe import Recipe
from lab.training.scales import FIRST_SEED, budget_of, recipe_for

SCHEDULES = ("constant", "cosine")
BATCHES = (128, 256, 512)
PUBLISHED = {"last": Published(49.5, 0.3), "best": Published(53.57, 0.39)}  # tables 12 and 9
SEEDS = {"smoke": 2, "cpu": 2, "paper": 3}
MARKS = ("<!-- calibration: begin -->", "<!-- calibration: end -->")


def main(argv: list[str] | None = None) -> None:
    """Train the plain MLP under each assumption; print the table, save and draw."""
    args = parse_args(argv)
    recipes = recipes_of(args)
    seeds = range(FIRST_SEED, FIRST_SEED + (args.seeds or SEEDS[args.scale]))
    seeded = [replace(recipe, seed=seed) for recipe in recipes.values() for seed in seeds]
    if args.show_recipe:
        exit_showing([asdict(recipe) for recipe in seeded])

    with executing(args) as executor:
        runs = iter(sweep(seeded, cache=args.cache, executor=executor))
    by_recipe = {name: [next(runs) for _ in seeds] for name in recipes}

    result = measure(by_recipe, list(seeds))
    reasons = obstacles_of(next(iter(recipes.values())), len(seeds))
    rows = rows_of(result, reasons)
    budget = budget_of(list(recipes.values()), len(seeds))
    publish(result, draw(by_recipe), rows, output=args.output, budget=budget)

    if args.page is not None and is_first_process():
        write_table(args.page, table_of(result, budget))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = arguments(__doc__, output="results/recipe_calibration.nc")
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--batches", nargs="+", type=at_least_one, default=list(BATCHES))
    parser.add_argument("--lr", nargs="+", type=float, help="rates; table 15's by default")
    parser.add_argument("--page", type=Path, help="a page with marks, to put the table in")
    return parser.parse_args(argv)


def recipes_of(args: argparse.Namespace) -> dict[str, Recipe]:
    """Make a recipe for each assumption, by its name."""
    plain = recipe_for("mlp", args, "cifar10")
    recipes = {}
    for rate in args.lr or [plain.lr]:
        for schedule in args.schedules:
            for batch in args.batches:
                name = f"{schedule}, batch {batch}, rate {rate:g}"
                recipes[name] = replace(plain, schedule=schedule, batch=batch, lr=rate)
    return recipes


def obstacles_of(recipe: Recipe, n_seeds: int) -> list[str]:
    """Say what keeps these runs from having a verdict: that they are tried one beside another.

    Of several assumptions some will meet the published number. The notes say which do; whether the
    one that is chosen holds is for the other tables to say.
    """
    paper = published_conditions("mlp", "cifar10", 10)
    trial = "one of several assumptions"
    return [*obstacles(conditions_of(recipe, n_seeds), paper), trial]


def measure(by_recipe: dict[str, list[xr.Dataset]], seeds: list[int]) -> xr.Dataset:
    """Return accuracies by both protocols, best epoch and gap, over `recipe` and `seed`."""
    columns: dict[str, list[list[float]]] = {f"{protocol}_accuracy": [] for protocol in PROTOCOLS}
    columns |= {"best_epoch": [], "gap": []}
    for runs in by_recipe.values():
        for protocol in PROTOCOLS:
            percent = [100 * accuracy_of(run, protocol) for run in runs]
            columns[f"{protocol}_accuracy"].append(percent)

        curves = [run["test_accuracy"].fillna(-1.0).values for run in runs]
        columns["best_epoch"].append([float(curve.argmax() + 1) for curve in curves])
        gaps = [run["train_accuracy"].values[-1] - run["test_accuracy"].values[-1] for run in runs]
        columns["gap"].append([100 * float(gap) for gap in gaps])

    titles = {
        "last_accuracy": ("test accuracy, last epoch", "%"),
        "best_accuracy": ("test accuracy, best epoch", "%"),
        "best_epoch": ("epoch of the best test accuracy", "1"),
        "gap": ("training less test accuracy, last epoch", "%"),
    }
    variables = {
        name: (
            ("recipe", "seed"),
            np.array(values),
            dict(zip(("long_name", "units"), titles[name], strict=True)),
        )
        for name, values in columns.items()
    }
    coords = {
        "recipe": ("recipe", list(by_recipe), {"long_name": "what is assumed"}),
        "seed": ("seed", seeds, {"long_name": "seed"}),
    }
    return xr.Dataset(variables, coords)


def rows_of(result: xr.Dataset, reasons: list[str]) -> list[Row]:
    """Compare both protocols of every assumption with the published numbers."""
    rows = []
    for name in result["recipe"].values.tolist():
        for protocol, title in PROTOCOLS.items():
            values = result[f"{protocol}_accuracy"].sel(recipe=name).values
            quantity = f"{name}, {title} / %"
            rows.append(compare(quantity, PUBLISHED[protocol], values, obstacles=reasons))
    return rows


def table_of(result: xr.Dataset, budget: str) -> str:
    """Write the table of the page."""
    heads = ("assumption (AdamW, decay 1e-3)", "last epoch / %", "best epoch / %", "best at", "gap")
    lines = [heads, ("---",) * len(heads)]
    published = [
        format_published(Row("", p.mean, None, deviation=p.deviation)) for p in PUBLISHED.values()
    ]
    lines.append(("**published**", *published, "-", "-"))

    for name in result["recipe"].values.tolist():
        part = result.sel(recipe=name)
        cells = []
        for protocol in PROTOCOLS:
            mean, low, high = mean_interval(part[f"{protocol}_accuracy"].values.tolist())
            cells.append(format_here(Row("", None, mean, low=low, high=high)))
        cells += [f"{float(part['best_epoch'].mean()):.0f}", f"{float(part['gap'].mean()):.1f}"]
        lines.append((name, *cells))

    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"Budget: {budget}. In brackets the 95 % interval of the mean over seeds.\n\n{table}"


def write_table(page: Path, table: str) -> None:
    """Put the table between the marks of a page; the rest of it stays.

    Raises:
        ValueError: If the page has no marks.
    """
    text = page.read_text(encoding="utf-8")
    begin, end = (text.find(mark) for mark in MARKS)
    if begin < 0 or end < begin:
        raise ValueError(f"`page`: {page} has no lines {MARKS[0]} and {MARKS[1]}")

    head, tail = text[: begin + len(MARKS[0])], text[end:]
    write_atomically({page: lambda path: path.write_text(f"{head}\n{table}\n{tail}")})


def draw(by_recipe: dict[str, list[xr.Dataset]]) -> Figure:
    """Draw test accuracy over epochs for each assumption, with both published numbers."""
    figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, runs in by_recipe.items():
        curves = np.array([100 * run["test_accuracy"].values for run in runs])
        ax.plot(runs[0]["epoch"], curves.mean(0), label=name, linewidth=1)

    for protocol, paper in PUBLISHED.items():
        ax.axhline(paper.mean, color="0.4", linestyle="--" if protocol == "last" else ":")
    ax.set(xlabel="epoch", ylabel="test accuracy / %", title="plain MLP; published: 49.5 and 53.6")
    ax.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
