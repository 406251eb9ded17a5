"""How strong should the auxiliary loss be? The paper's two searches, and rules that need none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from lab.training.recipe import Recipe

Runner = Callable[[Sequence[Recipe]], list[xr.Dataset]]

GRID = np.logspace(-1, 2, 10)  # table 15
COARSE = np.logspace(-2, 1, 5)  # table 22
LINE = np.linspace(0, 50, 11)  # the MLP on CIFAR-10
HELD_OUT = 0.1

# The two stages before: for the plain network, 150 epochs each.
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
FIRST_DECAY = 1e-4  # while the rate is searched
DECAYS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
STAGE_EPOCHS = 150

# Rules that adapt the strength: the auxiliary gradient at half the main one's; alpha 1.
BALANCE_SHARE = 0.5
GATE_ALPHA = 1.0
METHODS = ("grid", "two stages", "balance", "gate")


def fine_candidates(best: float) -> np.ndarray:
    """Return nine values around the best coarse one (table 22).

    Examples:
        >>> fine_candidates(10**-0.5).round(3).tolist()  # table 23
        [0.1, 0.133, 0.178, 0.237, 0.316, 0.422, 0.562, 0.75, 1.0]
    """
    return np.logspace(np.log10(best) - 0.5, np.log10(best) + 0.5, 9)


def compare_searches(recipe: Recipe, seeds: Sequence[int], run: Runner) -> xr.Dataset:
    """Choose alpha for each seed on a held-out tenth of the training images, then train with it.

    Args:
        recipe: With branches; its own alpha does not matter.
        seeds: Each is searched by itself, as the paper did.
        run: Gives one result of `lab.training.train` for each recipe.

    Returns:
        Dataset with `alpha (search, seed)`, NaN for adaptive rules; `accuracy (search, seed)` on
        the test images; `n_runs (search)` that it needs; `held_out_accuracy (seed,
        candidate)` of the grid.
    """
    # Only accuracies are read from these runs.
    recipe = replace(recipe, trace_every=0, attention_epochs=())

    grid_accuracies = _measure_held_out(recipe, seeds, [GRID] * len(seeds), run)
    grid_alphas = [_choose(GRID, row) for row in grid_accuracies]

    coarse_accuracies = _measure_held_out(recipe, seeds, [COARSE] * len(seeds), run)
    fine_by_seed = [fine_candidates(_choose(COARSE, row)) for row in coarse_accuracies]
    fine_accuracies = _measure_held_out(recipe, seeds, fine_by_seed, run)
    two_stage_alphas = [
        _choose(candidates, row)
        for candidates, row in zip(fine_by_seed, fine_accuracies, strict=True)
    ]

    # By method, in the order of METHODS, then by seed.
    final_recipes = [
        replace(recipe, alpha=alpha, seed=seed)
        for alphas in (grid_alphas, two_stage_alphas)
        for alpha, seed in zip(alphas, seeds, strict=True)
    ]
    balance = replace(recipe, strength="balance", alpha=BALANCE_SHARE)
    gate = replace(recipe, strength="gate", alpha=GATE_ALPHA)
    final_recipes += [replace(rule, seed=seed) for rule in (balance, gate) for seed in seeds]
    percent = [100 * result["test_accuracy"].values[-1] for result in run(final_recipes)]

    no_alpha = [np.nan] * len(seeds)
    return _label_searches(
        seeds,
        alphas=np.array([grid_alphas, two_stage_alphas, no_alpha, no_alpha]),
        accuracies=np.reshape(percent, (len(METHODS), len(seeds))),
        grid_accuracies=np.array(grid_accuracies),
    )


def search_line(recipe: Recipe, run: Runner) -> tuple[float, str]:
    """Choose alpha on a line from 0 to 50 by the accuracy on a held-out tenth, for one seed.

    Args:
        recipe: With a branch; its own alpha does not matter.
        run: Gives one result of `lab.training.train` for each recipe.

    Returns:
        The best strength above 0, and all accuracies in words.
    """
    recipe = replace(recipe, trace_every=0, attention_epochs=(), held_out=HELD_OUT)
    recipe = replace(recipe, test_per_class=None)

    # A branch without any strength is no branch.
    recipes = [replace(recipe, alpha=float(a)) if a else replace(recipe, n=0) for a in LINE]
    accuracies = [_last_percent(result) for result in run(recipes)]

    alpha = _choose(LINE[1:], accuracies[1:])
    pairs = zip(LINE, accuracies, strict=True)
    words = ", ".join(f"{candidate:g}: {accuracy:.2f}" for candidate, accuracy in pairs)
    return alpha, f"held-out accuracy by alpha: {words}; best {alpha:g}"


def search_rate_and_decay(
    recipe: Recipe, run: Runner, *, epochs: int = STAGE_EPOCHS
) -> tuple[float, float]:
    """Choose learning rate, then weight decay, of the plain network, on a held-out tenth.

    Args:
        recipe: Its own rate and decay do not matter.
        run: Gives one result of `lab.training.train` for each recipe.
        epochs: Of each run.
    """
    plain = replace(recipe, n=0, trace_every=0, attention_epochs=(), epochs=epochs)
    plain = replace(plain, held_out=HELD_OUT, test_per_class=None)

    by_rate = [replace(plain, lr=rate, weight_decay=FIRST_DECAY) for rate in RATES]
    rate = _choose(np.array(RATES), [_last_percent(result) for result in run(by_rate)])

    by_decay = [replace(plain, lr=rate, weight_decay=decay) for decay in DECAYS]
    decay = _choose(np.array(DECAYS), [_last_percent(result) for result in run(by_decay)])
    return rate, decay


def join_searches(searches: Mapping[tuple[str, int], xr.Dataset]) -> xr.Dataset:
    """Join searches into one Dataset over `architecture` and `n`; NaN for pairs not searched."""
    architectures = list(dict.fromkeys(name for name, _ in searches))

    parts = []
    for architecture in architectures:
        by_number = {n: part for (name, n), part in searches.items() if name == architecture}
        number = xr.Variable("n", list(by_number), {"long_name": "branches at each layer"})
        parts.append(_join(list(by_number.values()), number))
    return _join(parts, xr.Variable("architecture", architectures, {"long_name": "backbone"}))


def _label_searches(
    seeds: Sequence[int],
    *,
    alphas: np.ndarray,
    accuracies: np.ndarray,
    grid_accuracies: np.ndarray,
) -> xr.Dataset:
    # Each search ends with one more run, with the strength that it chose.
    n_runs = [len(GRID) + 1, len(COARSE) + len(fine_candidates(1.0)) + 1, 1, 1]
    dims = ("search", "seed")

    return xr.Dataset(
        {
            "alpha": (dims, alphas, {"long_name": "strength chosen"}),
            "accuracy": (dims, accuracies, {"long_name": "test accuracy", "units": "%"}),
            "n_runs": ("search", n_runs, {"long_name": "training runs needed"}),
            "held_out_accuracy": (
                ("seed", "candidate"),
                grid_accuracies,
                {"long_name": "accuracy on the held-out tenth", "units": "%"},
            ),
        },
        {
            "search": ("search", list(METHODS), {"long_name": "how alpha is found"}),
            "seed": ("seed", list(seeds), {"long_name": "seed"}),
            "candidate": ("candidate", GRID, {"long_name": "alpha"}),
        },
    )


def _measure_held_out(
    recipe: Recipe, seeds: Sequence[int], candidates: Sequence[np.ndarray], run: Runner
) -> list[list[float]]:
    """Return the accuracy on the held-out tenth, in percent, `(seed, candidate)`."""
    # All images that were held out are looked at, however few test images the recipe asks for.
    held_out = replace(recipe, held_out=HELD_OUT, test_per_class=None)
    recipes = [
        replace(held_out, seed=seed, alpha=float(alpha))
        for seed, row in zip(seeds, candidates, strict=True)
        for alpha in row
    ]

    results = iter(run(recipes))
    return [[100 * float(next(results)["test_accuracy"][-1]) for _ in row] for row in candidates]


def _last_percent(result: xr.Dataset) -> float:
    return 100 * float(result["test_accuracy"].values[-1])


def _choose(candidates: np.ndarray, accuracies: Sequence[float]) -> float:
    # A diverged run is NaN, which is never the best; the first of equals is the weakest alpha.
    best = int(np.argmax(np.nan_to_num(accuracies, nan=-1.0)))
    return float(candidates[best])


def _join(parts: Sequence[xr.Dataset], dim: xr.Variable) -> xr.Dataset:
    return xr.concat(parts, dim, combine_attrs="drop_conflicts", data_vars="all", join="outer")
