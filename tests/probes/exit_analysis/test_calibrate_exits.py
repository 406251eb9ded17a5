"""Thresholds from targets: exact on the record, and as safe as they say on data to come."""

import math

import numpy as np
import pytest

import probes
from probes._exit_analysis.bounds import rate_bound
from tests.helpers.exit_models import BLOCKS, text, text_model
from tests.helpers.exit_records import make_record, uniform_confidence


def chosen(record, **target):
    grid = np.linspace(0, 1, 51)
    return probes.calibrate_exits(record, candidates=grid, **target).sel(exit="h.0").squeeze()


@pytest.mark.parametrize("rate", [0.001, 0.25, 0.5, 0.9, 1.0])
def test_exit_rate_is_a_quantile(rate):
    record = uniform_confidence(np.random.default_rng(0), 1000)
    row = chosen(record, exit_rate=rate)
    assert float(row["exit_rate"]) == rate
    sure = np.sort(record["confidence"].values[0, 0])
    assert float(row["tau"]) == sure[len(sure) - round(rate * 1000)]


def test_exit_rate_of_several_exits_and_every_measure():
    model, data = text_model(), text(samples=20)
    record = probes.record_exits(model, data, BLOCKS)
    found = probes.calibrate_exits(record, exit_rate=0.3)
    for measure in ("max softmax", "margin", "entropy", "cosine"):
        for name in ("blocks.0", "blocks.1", "any"):
            row = found.sel(measure=measure, exit=name)
            routes = probes.route_exits(record, thresholds=[float(row["tau"])])
            routed = routes.sel(measure=measure, exit=name).squeeze()
            rate = float(row["exit_rate"])
            assert float(routed["shallow"]) == pytest.approx(rate, rel=1e-12)
            stricter = float(np.nextafter(row["tau"], 2))
            fewer = probes.route_exits(record, thresholds=[stricter]).sel(
                measure=measure, exit=name
            )
            assert fewer["shallow"].item() < 0.3 <= rate < 0.33
            assert float(routed["agreement"]) == float(row["agreement"])
            ratio = float(routed["perplexity"] / routes["fixed_perplexity"][-1])
            assert float(row["increase"]) == pytest.approx(ratio - 1)


@pytest.mark.parametrize(("tokens", "shared"), [(1, 0.0), (8, 0.7)])
def test_agreement_holds_as_often_as_promised(tokens, shared):
    # The expected disagreement is (1 - tau)^2 / 4, so 0.9 allows tau down to 0.3675.
    rng, delta, runs = np.random.default_rng(0), 0.2, 200
    least = 1 - math.sqrt(4 * 0.1)
    taus = []
    for _ in range(runs):
        record = uniform_confidence(rng, 150, tokens, shared)
        taus.append(float(chosen(record, agreement=0.9, delta=delta)["tau"]))
    failed = np.mean(np.array(taus) < least - 1e-9)
    assert failed <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert np.median(taus) < 0.65  # not safe by refusing all
    if tokens == 1:
        assert failed > 0.05  # the binomial test is not far from its level


def test_increase_holds_as_often_as_promised():
    # Leaving adds 1 with chance (1 - u) / 2, else -0.1: in the mean, from tau up,
    # 1.1 (1 - tau)^2 / 4 - 0.1 (1 - tau).
    rng, delta, runs, target = np.random.default_rng(0), 0.2, 200, 0.02
    x = np.linspace(0, 1, 10_001)
    allowed = x[1.1 * (1 - x) ** 2 / 4 - 0.1 * (1 - x) <= math.log1p(target)].min()
    taus = [
        float(chosen(uniform_confidence(rng, 300), increase=target, delta=delta)["tau"])
        for _ in range(runs)
    ]
    failed = np.mean(np.array(taus) < allowed - 1e-3)
    assert failed <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert failed > 0.05


@pytest.mark.parametrize(("tokens", "shared"), [(1, 0.0), (8, 0.7)])
def test_exit_rates_stay_within_their_bound(tokens, shared):
    rng, delta, gaps = np.random.default_rng(0), 0.2, []
    for _ in range(300):
        row = chosen(uniform_confidence(rng, 50, tokens, shared), exit_rate=0.4, delta=delta)
        expected = 1 - float(row["tau"])  # confidence is uniform
        gaps.append(abs(float(row["exit_rate"]) - expected))
    assert np.mean(np.array(gaps) > float(row["rate_bound"])) <= delta
    assert float(row["rate_bound"]) == rate_bound(np.full(50, tokens), delta)


def unequal(rng, samples):
    """Half of the samples have nine tokens, all like each other and often wrong; half have one.

    A long one is wrong with chance 0.3 where it leaves, a short one never; all are equally sure,
    so that of tokens that leave (1 - tau), a share of 0.9 x 0.3 is wrong.
    """
    long = np.repeat([9, 1], samples // 2)
    sample = np.repeat(np.arange(samples), long)
    u, wrong = rng.random(samples)[sample], (rng.random(samples) < 0.3)[sample]
    wrong &= (long == 9)[sample]
    n = len(sample)
    prediction = np.stack([wrong.astype(int), np.zeros(n, dtype=int)])
    loss = np.stack([np.where(wrong, 1.5, 1.0), np.ones(n)])
    sure = np.stack([u, np.ones(n)])
    return make_record(sure, loss, prediction, np.zeros(n, dtype=int), sample)


@pytest.mark.parametrize("target", [{"agreement": 0.9}, {"increase": math.expm1(0.05)}])
def test_long_samples_count_by_their_tokens(target):
    # Wrong: 0.27 (1 - tau); added: half of that. Both targets allow 1 - tau up to 0.1 / 0.27; by
    # samples in place of tokens it would be nearly twice as many.
    rng, delta, runs = np.random.default_rng(0), 0.2, 150
    taus = np.array(
        [float(chosen(unequal(rng, 200), delta=delta, **target)["tau"]) for _ in range(runs)]
    )
    failed = np.mean(taus < 1 - 0.1 / 0.27 - 1e-9)
    assert failed <= delta + 3 * math.sqrt(delta * (1 - delta) / runs)
    assert np.median(taus) < 0.9  # not safe by refusing all


def test_exit_rates_of_unequal_samples_stay_within_their_bound():
    rng, delta, gaps = np.random.default_rng(0), 0.2, []
    for _ in range(200):
        row = chosen(unequal(rng, 100), exit_rate=0.4, delta=delta)
        gaps.append(abs(float(row["exit_rate"]) - (1 - float(row["tau"]))))
    bound = float(row["rate_bound"])
    assert np.mean(np.array(gaps) > bound) <= delta
    assert bound == pytest.approx(2 * 9 / 5 * rate_bound(np.full(100, 9), delta))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_an_infinite_loss_proves_nothing():
    record = uniform_confidence(np.random.default_rng(0), 50)
    record["cross_entropy"][:, 3] = np.inf
    row = chosen(record, increase=0.5)
    assert float(row["tau"]) == 1.01
    assert math.isnan(float(row["p_value"]))


@pytest.mark.parametrize(("increase", "leaves"), [(1.15, 0), (1.25, 1)])
def test_an_increase_is_one_of_perplexity(increase, leaves):
    # Leaving adds 0.8 to every cross-entropy: a factor of 2.2255 in perplexity.
    guess, late = np.zeros((2, 20), dtype=int), np.ones(20)
    record = make_record(np.ones((2, 20)), np.stack([late + 0.8, late]), guess, late, np.arange(20))
    row = chosen(record, increase=increase)
    assert float(row["exit_rate"]) == leaves
    assert float(row["increase"]) == pytest.approx(leaves * math.expm1(0.8))


def test_testing_stops_at_the_first_failure():
    # The surest tenth loses by leaving, all others gain: lower thresholds would look fine.
    sure = np.stack([np.linspace(0, 1, 1000), np.ones(1000)])
    loss = np.stack([np.where(sure[0] > 0.9, 2.0, 0.5), np.ones(1000)])
    guess = np.zeros((2, 1000), dtype=int)
    record = make_record(sure, loss, guess, guess[0], np.arange(1000))
    assert float(chosen(record, exit_rate=1.0)["increase"]) < 0
    row = chosen(record, increase=0.001)
    assert float(row["tau"]) == 1.01
    assert float(row["exit_rate"]) == 0


def test_few_samples_prove_nothing_and_nobody_leaves():
    row = chosen(uniform_confidence(np.random.default_rng(0), 10), agreement=0.99)
    assert float(row["tau"]) == 1.01
    assert float(row["exit_rate"]) == 0
    assert float(row["agreement"]) == 1
    assert math.isnan(float(row["p_value"]))


def test_the_guarantee_is_stated():
    record = uniform_confidence(np.random.default_rng(0), 40, tokens=3)
    found = probes.calibrate_exits(record, agreement=0.9)
    assert "at least 0.95 over 40 independent" in found.attrs["guarantee"]
    assert "Hoeffding-Bentkus; finite-sample" in found.attrs["guarantee"]
    found = probes.calibrate_exits(record, increase=0.01)
    assert "not a finite-sample bound" in found.attrs["guarantee"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "one target"),
        ({"exit_rate": 0.5, "agreement": 0.5}, "one target"),
        ({"exit_rate": 0}, "`exit_rate`"),
        ({"agreement": 1.2}, "`agreement`"),
        ({"increase": -0.1}, "`increase`"),
        ({"increase": math.nan}, "`increase`"),
        ({"agreement": 0.9, "delta": 0}, "`delta`"),
        ({"agreement": 0.9, "candidates": [math.nan]}, "`candidates`"),
    ],
)
def test_arguments_that_do_not_fit(settings, message):
    record = uniform_confidence(np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match=message):
        probes.calibrate_exits(record, **settings)
