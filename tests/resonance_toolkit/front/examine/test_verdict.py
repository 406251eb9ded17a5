"""Constructed experiments: each verdict where it must come out, and intervals that hold."""

import math

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from resonance_toolkit._front.examine.intervals import Difference, difference_of, seeds_to_decide
from resonance_toolkit._front.examine.verdict import judge


def make_response(
    by_seed_and_group, *, cosines=0.3, losses=None, has_classes=True, n_samples=None
) -> xr.Dataset:
    """An experiment whose accuracy differs by so much in each seed and group of samples.

    Args:
        by_seed_and_group: Accuracy with branches minus plain; a loss with `has_classes=False`.
        cosines: Of the gradients, for each seed or for all.
        losses: Differences of the loss, likewise; by default those of the accuracy, negated.
        has_classes: Whether there is an accuracy.
        n_samples: Samples in each group; by default 4 each.
    """
    differences = np.asarray(by_seed_and_group, dtype=float)
    n_seeds, n_groups = differences.shape
    n_samples = np.full(n_groups, 4) if n_samples is None else np.asarray(n_samples)
    loss_differences = -differences if losses is None else np.asarray(losses, dtype=float)
    if not has_classes:
        loss_differences = differences
        differences = np.full_like(differences, np.nan)

    variables = {}
    for name, plain, change in (("accuracy", 0.5, differences), ("loss", 1.0, loss_differences)):
        groups = np.stack([np.full(change.shape, plain), plain + change])
        groups[0] += 0 * change  # NaN where there are no classes
        means = np.average(groups, axis=2, weights=n_samples)
        variables[f"group_{name}"] = (("arm", "seed", "group"), groups)
        variables[name] = (("arm", "seed", "step"), np.stack([means, means], axis=2))

    if cosines is not None:
        cosine = np.broadcast_to(np.asarray(cosines, dtype=float), (n_seeds,))
        variables["cosine_total"] = (("seed", "trace_step"), np.stack([cosine, cosine], axis=1))
    return xr.Dataset(
        variables,
        coords={
            "arm": ["plain", "branches"],
            "seed": range(n_seeds),
            "step": [0, 20],
            "group": range(n_groups),
            "group_samples": ("group", n_samples),
        },
    )


def spread_around(mean, n_seeds=5, n_groups=16, spread=0.01):
    noise = np.random.default_rng(0).normal(0, spread, (n_seeds, n_groups))
    return mean + noise - noise.mean()


ABOVE, BELOW, MIXED = (
    [0.3, 0.35, 0.25, 0.3, 0.32],
    [-0.3, -0.35, -0.25, -0.3, -0.32],
    [0.3, -0.2] * 2,
)


@pytest.mark.parametrize(
    ("accuracy", "cosines", "word"),
    [
        (0.1, ABOVE, "synergy"),
        (-0.1, BELOW, "conflict"),
        (0.1, BELOW, "incoherent"),
        (-0.1, ABOVE, "incoherent"),
        (0.1, [*MIXED, 0.0], "incoherent"),
        (-0.1, [*MIXED, 0.0], "incoherent"),
        (0.0, ABOVE, "undecided"),
        (0.0, BELOW, "undecided"),
        (0.1, np.nan, "undecided"),
        (0.1, None, "undecided"),
    ],
)
def test_effect_and_cosine_together_decide(accuracy, cosines, word):
    verdict = judge(make_response(spread_around(accuracy), cosines=cosines))
    assert verdict.word == word
    assert verdict.low < accuracy < verdict.high
    assert verdict.sentence.endswith(".")
    assert verdict.remedy


def test_effect_and_interval_have_one_unit():
    verdict = judge(make_response(spread_around(0.1), cosines=ABOVE))
    low, high = (100 * end for end in (verdict.low, verdict.high))
    assert "10 percentage points higher" in verdict.sentence
    assert f"{low:+.3g} to {high:+.3g}" in verdict.sentence


def test_a_lower_loss_is_better_where_there_are_no_classes():
    better = judge(make_response(spread_around(-0.1), has_classes=False, cosines=ABOVE))
    assert (better.word, better.measure) == ("synergy", "loss")
    worse = judge(make_response(spread_around(0.1), has_classes=False, cosines=BELOW))
    assert (worse.word, worse.measure) == ("conflict", "loss")


def test_seeds_that_agree_about_few_samples_decide_nothing():
    # Each of three seeds gets the same one of sixteen samples wrong: no spread between the seeds.
    differences = np.zeros((3, 16))
    differences[:, 5] = -1
    response = make_response(differences, cosines=[-0.3, -0.31, -0.32], n_samples=np.ones(16))
    assert response["accuracy"].isel(step=-1).std("seed").max() == 0

    verdict = judge(response)
    assert verdict.word == "undecided"
    assert verdict.low < 0 < verdict.high
    assert "more held-out samples" in verdict.remedy


def test_two_seeds_that_happen_to_agree_decide_nothing():
    differences = np.zeros((2, 16))
    differences[0, 3] = differences[1, 7] = -1
    assert judge(make_response(differences, cosines=[-0.3, -0.31])).word == "undecided"


def test_the_interval_is_one_by_hand():
    # Seeds: 1 and 3. Groups: 1, 3, 2 of 1, 1, 2 samples, weights 1/4, 1/4, 1/2, mean 2.
    differences = np.array([[0.0, 2.0, 1.0], [2.0, 4.0, 3.0]])
    difference = difference_of(make_response(differences, n_samples=[1, 1, 2]), "accuracy")

    half_seeds = stats.t.ppf(0.975, 1) * math.sqrt(2) / math.sqrt(2)
    variance = 3 / 2 * ((1 / 4) ** 2 + (1 / 4) ** 2)
    half_samples = stats.t.ppf(0.975, 2) * math.sqrt(variance)
    assert difference.mean == 2
    np.testing.assert_allclose(difference.half_seeds, half_seeds)
    np.testing.assert_allclose(difference.half_samples, half_samples)
    np.testing.assert_allclose(difference.high - 2, math.hypot(half_seeds, half_samples))


@pytest.mark.parametrize(
    ("of_seeds", "of_samples", "n_seeds"), [(0, 1, 2), (1, 0, 3), (0.3, 0.3, 2), (1, 1, 5)]
)
def test_the_interval_holds_the_truth_for_new_seeds_and_new_samples(of_seeds, of_samples, n_seeds):
    rng = np.random.default_rng(1)
    n_trials = 200
    hits = 0
    for _ in range(n_trials):
        by_seed = rng.normal(0, of_seeds, (n_seeds, 1))
        by_group = rng.normal(0, of_samples, (1, 16))
        differences = by_seed + by_group + rng.normal(0, 0.3, (n_seeds, 16))
        difference = difference_of(make_response(differences), "accuracy")
        hits += difference.low <= 0 <= difference.high

    # 95 %, less three standard errors.
    assert hits / n_trials > 0.95 - 3 * math.sqrt(0.95 * 0.05 / n_trials)


def test_seeds_alone_may_decide_for_too_few_samples():
    # What the test above would be without the samples' share: a difference of these sixteen only.
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(100):
        differences = rng.normal(0, 1.0, (1, 16)) + rng.normal(0, 0.1, (5, 16))
        difference = difference_of(make_response(differences), "accuracy")
        hits += abs(difference.mean) <= difference.half_seeds
    assert hits / 100 < 0.6


def test_one_seed_and_one_sample_have_no_interval():
    one_seed = judge(make_response(spread_around(0.1, n_seeds=1)))
    assert (one_seed.word, one_seed.sentence[:8]) == ("undecided", "One seed")
    assert math.isnan(one_seed.low)

    one_sample = judge(make_response(spread_around(0.1, n_groups=1)))
    assert (one_sample.word, one_sample.sentence[:19]) == ("undecided", "One held-out sample")
    assert "more samples" in one_sample.remedy


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_runs_that_diverge_are_counted_even_if_logits_have_a_largest(bad):
    response = make_response(spread_around(0.1))
    response["loss"].loc[{"arm": "branches", "seed": [1, 3], "step": 20}] = bad
    verdict = judge(response)
    assert verdict.word == "undecided"
    assert "in 0 of 5 plain runs and 2 of 5 with branches" in verdict.sentence


def test_a_loss_that_tells_is_told_beside_an_accuracy_that_does_not():
    undecided = make_response(np.zeros((5, 16)), losses=spread_around(-0.1))
    verdict = judge(undecided)
    assert (verdict.word, verdict.measure) == ("undecided", "accuracy")
    assert "The held-out loss, a finer measure, is clearly lower" in verdict.sentence


def test_no_experiment_is_undecided_with_its_reason():
    verdict = judge(None, "nothing in it is trained")
    assert verdict.word == "undecided"
    assert "nothing in it is trained" in verdict.sentence
    assert "not asked for" in judge(None).sentence


def test_seeds_to_decide_are_enough_and_one_less_is_not():
    by_seed = np.array([0.2, -0.1, 0.4, 0.1])
    difference = Difference(by_seed, by_seed.mean(), 0.0, half_samples=0.05)
    n_seeds = seeds_to_decide(difference)

    def half(n):
        of_seeds = stats.t.ppf(0.975, n - 1) * by_seed.std(ddof=1) / math.sqrt(n)
        return math.hypot(of_seeds, 0.05)

    assert half(n_seeds) < by_seed.mean() <= half(n_seeds - 1)
    assert seeds_to_decide(Difference(by_seed, by_seed.mean(), 0.0, half_samples=1.0)) is None
