"""Routing on records made by hand: equality at the threshold, costs, errors, undefined measures."""

import numpy as np
import pytest

import probes
from tests.helpers.exit_records import make_record, sure_share


def test_a_token_leaves_at_the_threshold_itself():
    found = probes.route_exits(sure_share(0.3), thresholds=[1.0, np.nextafter(1.0, 2)])
    assert found["shallow"].sel(exit="h.0").values[:, 0].tolist() == [0.3, 0]


def test_error_of_independent_samples_is_the_usual_one():
    rng = np.random.default_rng(0)
    loss, guess = rng.random((2, 50)), rng.integers(0, 2, (2, 50))
    record = make_record(rng.random((2, 50)), loss, guess, guess[1], np.arange(50))
    found = probes.route_exits(record, thresholds=[0, 2]).sel(exit="h.0").squeeze()
    usual = loss.std(axis=1, ddof=1) / np.sqrt(50)
    np.testing.assert_allclose(found["cross_entropy_se"], usual, rtol=1e-12)
    np.testing.assert_allclose(found["perplexity_se"], usual * np.exp(loss.mean(1)), rtol=1e-12)
    np.testing.assert_allclose(found["fixed_cross_entropy_se"], usual, rtol=1e-12)
    hits = (guess == guess[1]).astype(float)
    usual_hits = hits.std(axis=1, ddof=1) / np.sqrt(50)
    np.testing.assert_allclose(found["accuracy_se"], usual_hits, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found["fixed_accuracy_se"], usual_hits, rtol=1e-12, atol=1e-15)
    one = make_record(loss[:, :3], loss[:, :3], guess[:, :3], guess[1, :3], np.zeros(3, dtype=int))
    assert probes.route_exits(one)["cross_entropy_se"].isnull().all()


def unequal_samples(rng, samples=400):
    """Texts of 1 to 12 tokens that leave early all or none, and whose losses go with both."""
    lengths = rng.integers(1, 13, samples)
    sample = np.repeat(np.arange(samples), lengths)
    sure = (rng.random(samples) < 0.4).astype(float)[sample]
    early = 2 + 0.1 * lengths[sample] - sure * 0.5 + rng.normal(0, 0.3, len(sample))
    late = 1 + 0.05 * lengths[sample] + rng.normal(0, 0.3, len(sample))
    guess = rng.integers(0, 2, (2, len(sample)))
    confidence = np.stack([sure, np.ones(len(sample))])
    return make_record(confidence, np.stack([early, late]), guess, guess[1], sample)


@pytest.mark.parametrize("name", ["cross_entropy", "accuracy", "gain"])
def test_errors_are_those_of_leaving_one_sample_out(name):
    record = unequal_samples(np.random.default_rng(0))
    found = probes.route_exits(record, thresholds=[0.5]).sel(exit="h.0").squeeze()
    assert float(found["shallow"]) == pytest.approx(0.4, abs=0.1)
    sample = record["sample"].values
    loss, right = record["cross_entropy"].values, record["prediction"] == record["target"]
    left = np.where(record["confidence"].values[0, 0] >= 0.5, 0, 1)

    def number(kept):
        taken = loss[left, np.arange(len(left))][kept]
        if name == "accuracy":
            return right.values[left, np.arange(len(left))][kept].mean()
        share = (left[kept] == 0).mean()
        at_random = share * loss[0, kept].mean() + (1 - share) * loss[1, kept].mean()
        return taken.mean() if name == "cross_entropy" else at_random - taken.mean()

    assert float(found[name]) == pytest.approx(number(sample >= 0), rel=1e-12)
    without = np.array([number(sample != one) for one in np.unique(sample)])
    n = len(without)
    jackknife = np.sqrt((n - 1) / n * np.square(without - without.mean()).sum())
    assert float(found[f"{name}_se"]) == pytest.approx(jackknife, rel=0.02)


def costs_of(measure, exit_):
    """Layers cost 1 each, the heads 10, 20 and 40; half of the tokens are sure at the exit."""
    record = sure_share(0.5, exit_at=1)
    record = record.assign_coords(measure=[measure])
    record["head_flops"] = ("layer", [10.0, 20.0, 40.0])
    found = probes.route_exits(record, thresholds=[0.9]).sel(exit=exit_)
    return float(found["compute_with_head"].item()) * (3 + 40)


@pytest.mark.parametrize(
    ("measure", "exit_", "leaves", "stays"),
    [
        ("max softmax", "h.1", 2 + 20, 3 + 20 + 40),
        ("max softmax", "any", 2 + 10 + 20, 3 + 10 + 20 + 40),
        ("patience", "h.1", 2 + 10 + 20, 3 + 10 + 20 + 40),  # the first must have spoken too
        ("cosine", "h.1", 2 + 20, 3 + 40),  # decides without logits
        ("cosine", "any", 2 + 20, 3 + 40),
    ],
)
def test_tokens_pay_for_the_heads_they_ask(measure, exit_, leaves, stays):
    assert costs_of(measure, exit_) == pytest.approx((leaves + stays) / 2)


def test_fixed_depths_pay_for_one_head():
    record = sure_share(0.5)
    record["head_flops"] = ("layer", [10.0, 20.0, 40.0])
    found = probes.route_exits(record)
    np.testing.assert_allclose(found["fixed_compute_with_head"], np.array([11, 22, 43]) / 43)


def test_undefined_measures_give_no_rows():
    record = sure_share(0.5)
    record["confidence"][0, 0] = np.nan
    found = probes.route_exits(record, thresholds=[0.0, 0.5])
    assert found["cross_entropy"].sel(exit="h.0").isnull().all()
    assert found["left"].sel(exit="h.0").isnull().all()
    # The other exit is defined, so with both open all leave there.
    assert found["left"].sel(exit="any").squeeze()[0].values.tolist() == [0, 1, 0]
    assert probes.calibrate_exits(record, agreement=0.5)["tau"].isnull().values.tolist() == [
        [True, False, False]
    ]
    assert probes.exit_reliability(record)["ece"][:, 0, 0].isnull().all()


def test_a_rate_counts_the_exits_whose_measure_is_defined():
    record = sure_share(0.5)
    record["confidence"][0, 0] = np.nan
    record["confidence"][0, 1] = np.linspace(0, 1, 1000)
    row = probes.calibrate_exits(record, exit_rate=0.3).sel(exit="any").squeeze()
    assert float(row["exit_rate"]) == 0.3
    assert float(row["tau"]) == np.linspace(0, 1, 1000)[700]


def test_an_oracle_is_early_where_early_is_as_good():
    loss = np.array([[1.0, 2.0, 3.0, 0.0], [1.0, 1.0, 4.0, 0.5]])
    zeros = np.zeros((2, 4), dtype=int)
    record = make_record(loss, loss, zeros, zeros[0], np.arange(4))
    found = probes.route_exits(record).sel(exit="h.0")
    assert float(found["oracle_shallow"]) == 0.75
    assert float(found["oracle_cross_entropy"]) == (1 + 1 + 3 + 0) / 4
