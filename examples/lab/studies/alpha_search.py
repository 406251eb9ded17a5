"""How strong should the auxiliary loss be? The paper's two searches, and rules that need none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from lab.training.recipe import Recipe

Runner = Callable[[Sequence[Recipe]], list[xr.Dataset]]
GRID = np.logspace(-1, 2, 10)
COARSE = np.logspace(-2, 1, 5)
HELD_OUT = 0.1
ADAPTIVE = {"balance": 0.5, "gate": 1.0}  # the auxiliary gradient at half the main one's; alpha 1
METHODS = ("grid", "two stages", *ADAPTIVE)


def fine(best: float) -> np.ndarray:
    """Nine values around the best coarse one (table 22).

    Examples:
        >>> fine(10**-0.5).round(3).tolist()  # table 23
        [0.1, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.75, 1.0]
    """
    return np.logspace(np.log10(best) - 0.5, np.log10(best) + 0.5, 9)


def compare_searches(recipe: Recipe, seeds: Sequence[int], run: Runner) -> xr.Dataset:
    """Choose alpha for each seed on a held-out tenth of the training images, then train with it.

    Args:
        recipe: With branches; its own alpha does not matter.
        seeds: Each is searched by itself, as the paper did.
        run: Gives one result of `lab.train` for each recipe.

    Returns:
        Dataset with `alpha (search, seed)`, NaN for adaptive rules; `accuracy (search, seed)` on
        the test images; `n_runs (search)` that it needs; `held_out_accuracy (seed,
        candidate)` of the grid.
    """
    quiet = replace(recipe, trace_every=0, attention_epochs=())
    grid = _held_out(quiet, seeds, [list(GRID)] * len(seeds), run)
    coarse = _held_out(quiet, seeds, [list(COARSE)] * len(seeds), run)
    centres = [float(COARSE[_best(row)]) for row in coarse]
    around = [list(fine(centre)) for centre in centres]
    refined = _held_out(quiet, seeds, around, run)
    chosen = {
        "grid": [float(GRID[_best(row)]) for row in grid],
        "two stages": [float(a[_best(row)]) for a, row in zip(around, refined, strict=True)],
    }
    final = [
        replace(quiet, alpha=a, seed=s)
        for row in chosen.values()
        for a, s in zip(row, seeds, strict=True)
    ]
    for strength, alpha in ADAPTIVE.items():
        final += [replace(quiet, strength=strength, alpha=alpha, seed=seed) for seed in seeds]
    accuracies = [100 * r["test_accuracy"].values[-1] for r in run(final)]
    alphas = [*chosen.values(), *([[np.nan] * len(seeds)] * len(ADAPTIVE))]
    counts = [len(GRID) + 1, len(COARSE) + 9 + 1, *([1] * len(ADAPTIVE))]
    both = ("search", "seed")
    return xr.Dataset(
        {
            "alpha": (both, np.array(alphas), {"long_name": "strength chosen"}),
            "accuracy": (
                both,
                np.reshape(accuracies, (len(METHODS), len(seeds))),
                {"long_name": "test accuracy", "units": "%"},
            ),
            "n_runs": ("search", counts, {"long_name": "training runs needed"}),
            "held_out_accuracy": (
                ("seed", "candidate"),
                np.array(grid),
                {"long_name": "accuracy on the held-out tenth", "units": "%"},
            ),
        },
        {
            "search": ("search", list(METHODS), {"long_name": "how alpha is found"}),
            "seed": ("seed", list(seeds), {"long_name": "seed"}),
            "candidate": ("candidate", GRID, {"long_name": "alpha"}),
        },
    )


def join_searches(found: Mapping[tuple[str, int], xr.Dataset]) -> xr.Dataset:
    """One Dataset over `architecture` and `n`; NaN where a pair was not searched."""
    names = list(dict.fromkeys(name for name, _ in found))
    parts = []
    for name in names:
        mine = {n: part for (other, n), part in found.items() if other == name}
        number = xr.Variable("n", list(mine), {"long_name": "branches at each layer"})
        parts.append(_joined(list(mine.values()), number))
    return _joined(parts, xr.Variable("architecture", names, {"long_name": "backbone"}))


def draw_searches(
    found: Mapping[tuple[str, int], xr.Dataset],
    published: Mapping[tuple[str, int], Sequence[float]],
) -> Figure:
    """A row for each backbone and number of branches: the grid, and what each method reaches."""
    size = (10, 0.6 + 3.2 * len(found))
    figure, axes = plt.subplots(len(found), 2, figsize=size, layout="constrained", squeeze=False)
    for (left, right), ((name, n), part) in zip(axes, found.items(), strict=True):
        for seed in part["seed"].values:
            values = part["held_out_accuracy"].sel(seed=seed)
            left.plot(part["candidate"], values, marker="o", markersize=3, label=f"seed {seed}")
        for place, alpha in enumerate(published[name, n]):
            label = "" if place else "published choice"
            left.axvline(alpha, color="C1", linestyle="--", label=label)
        left.set(xscale="log", xlabel="alpha", ylabel="held-out accuracy / %")
        left.set_title(f"{name}, {n} x")
        left.legend(fontsize=8)
        for place in range(part.sizes["search"]):
            values = part["accuracy"].isel(search=place)
            right.plot([place] * values.size, values, "C0o", alpha=0.6)
            right.plot(place, values.mean(), "k_", markersize=18)
        methods = zip(part["search"].values, part["n_runs"].values, strict=True)
        labels = [f"{m}\n{int(k)} run{'s' if k > 1 else ''}" for m, k in methods]
        right.set_xticks(range(part.sizes["search"]), labels)
        right.set(ylabel="test accuracy / %", title="what each method reaches")
        right.margins(x=0.15)
    return figure


def _joined(parts: Sequence[xr.Dataset], dim: xr.Variable) -> xr.Dataset:
    return xr.concat(parts, dim, combine_attrs="drop_conflicts", data_vars="all", join="outer")


def _held_out(
    recipe: Recipe, seeds: Sequence[int], candidates: Sequence[Sequence[float]], run: Runner
) -> list[list[float]]:
    """Accuracy on the held-out tenth, in percent, `(seed, candidate)`."""
    searched = replace(recipe, held_out=HELD_OUT, test_per_class=None)
    recipes = [
        replace(searched, seed=seed, alpha=float(alpha))
        for seed, row in zip(seeds, candidates, strict=True)
        for alpha in row
    ]
    found = iter(run(recipes))
    return [[100 * float(next(found)["test_accuracy"][-1]) for _ in row] for row in candidates]


def _best(accuracies: Sequence[float]) -> int:
    # A diverged run is NaN, which is never the best; the first of equals is the weakest alpha.
    return int(np.argmax(np.nan_to_num(accuracies, nan=-1.0)))
