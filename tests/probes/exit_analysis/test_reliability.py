"""Reliability against scikit-learn, binning by hand, and resampling; the map token by token."""

import numpy as np
import pytest
import xarray as xr
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score

import probes
from tests.helpers.exit_models import BLOCKS, sharpened, text
from tests.helpers.exit_records import make_record, uniform_confidence


@pytest.fixture(scope="module")
def record():
    return probes.record_exits(sharpened(), text(samples=30), BLOCKS)


def happened(record, event, layer):
    loss, guess = record["cross_entropy"].values, record["prediction"].values
    return {
        "correct": guess[layer] == record["target"].values,
        "agrees": guess[layer] == guess[-1],
        "as good": loss[layer] <= loss[-1],
    }[event]


def test_area_is_that_of_scikit_learn(record):
    found = probes.exit_reliability(record)
    for event in found["event"].values:
        for m, measure in enumerate(found["measure"].values):
            for layer in (0, 1):
                truth = happened(record, event, layer)
                expected = roc_auc_score(truth, record["confidence"].values[m, layer])
                area = found["auroc"].sel(event=event, measure=measure)[layer]
                assert float(area) == pytest.approx(expected, rel=1e-12)
    # The last layer always agrees with itself.
    assert found["auroc"].sel(event=["agrees", "as good"])[..., -1].isnull().all()


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_curve_and_calibration_error(record, bins):
    found = probes.exit_reliability(record, bins=bins)
    for event in found["event"].values:
        for m, measure in enumerate(found["measure"].values):
            for layer in range(3):
                truth, sure = happened(record, event, layer), record["confidence"].values[m, layer]
                # A bin is [low, high), the last closed; token by token.
                cells = [[] for _ in range(bins)]
                for s, t in zip(sure, truth, strict=True):
                    cells[min(int(s * bins), bins - 1)].append((s, t))
                error = sum(
                    len(c)
                    / len(sure)
                    * abs(np.mean([s for s, _ in c]) - np.mean([t for _, t in c]))
                    for c in cells
                    if c
                )
                row = found.sel(event=event, measure=measure).isel(layer=layer)
                assert float(row["ece"]) == pytest.approx(error, rel=1e-9, abs=1e-12)
                filled = row["share"].values > 0
                assert row["share"].values.tolist() == [len(c) / len(sure) for c in cells]
                assert row["frequency"].isnull().values.tolist() == (~filled).tolist()


def test_curve_is_that_of_scikit_learn(record):
    found = probes.exit_reliability(record, bins=10)
    row = found.sel(event="correct", measure="max softmax").isel(layer=1)
    truth, sure = happened(record, "correct", 1), record["confidence"].values[0, 1]
    frequency, mean = calibration_curve(truth, sure, n_bins=10)
    np.testing.assert_allclose(row["frequency"].dropna("bin"), frequency)
    np.testing.assert_allclose(row["mean_confidence"].dropna("bin"), mean)


def test_a_calibrated_confidence_has_little_error():
    # The exit agrees with chance (1 + u) / 2, so read that as the confidence.
    record = uniform_confidence(np.random.default_rng(0), 100_000)
    record["confidence"] = (1 + record["confidence"]) / 2
    found = probes.exit_reliability(record).sel(event="agrees").isel(layer=0)
    assert float(found["ece"].item()) < 0.005
    record["confidence"] = 2 * record["confidence"] - 1  # now it is 1/4 too low on average
    found = probes.exit_reliability(record).sel(event="agrees").isel(layer=0)
    assert float(found["ece"].item()) == pytest.approx(0.25, abs=0.005)


def test_errors_are_those_over_samples():
    rng = np.random.default_rng(1)
    record = uniform_confidence(rng, 80, tokens=6, shared=0.8)
    found = probes.exit_reliability(record, bins=3).sel(event="agrees").isel(layer=0, measure=0)
    areas, frequencies = [], []
    for _ in range(300):
        chosen = rng.integers(0, 80, 80)
        again = record.isel(token=(6 * chosen[:, None] + np.arange(6)).ravel())
        again = again.assign_coords(sample=("token", np.repeat(np.arange(80), 6)))
        row = probes.exit_reliability(again, bins=3).sel(event="agrees").isel(layer=0, measure=0)
        areas.append(float(row["auroc"]))
        frequencies.append(row["frequency"].values)
    assert float(found["auroc_se"]) == pytest.approx(np.std(areas), rel=0.15)
    np.testing.assert_allclose(found["frequency_se"], np.std(frequencies, axis=0), rtol=0.2)


def test_errors_of_few_samples_written_out():
    # Four samples of two tokens: a factor of 4 / 3 tells.
    sure = np.array([0.1, 0.6, 0.2, 0.9, 0.3, 0.7, 0.4, 0.8])
    late, sample = np.zeros(8, dtype=int), np.repeat(np.arange(4), 2)
    guess = np.array([1, 0, 1, 0, 0, 1, 1, 0])
    event = guess == 0
    record = make_record(
        np.stack([sure, sure]), np.ones((2, 8)), np.stack([guess, late]), late, sample
    )
    found = probes.exit_reliability(record, bins=2).sel(event="agrees").isel(layer=0, measure=0)
    for index, inside in enumerate((sure < 0.5, sure >= 0.5)):
        rate = event[inside].mean()
        sums = [(event - rate)[inside & (sample == k)].sum() for k in range(4)]
        error = np.sqrt(4 / 3 * np.square(sums).sum()) / inside.sum()
        assert float(found["frequency_se"][index]) == pytest.approx(error, rel=1e-12)
    # Pairs of a token with the event and one without: won or lost.
    won = np.array([[float(a > b) for b in sure[~event]] for a in sure[event]])
    area, pulls = won.mean(), np.empty(8)
    pulls[event] = (won.mean(1) - area) / event.sum()
    pulls[~event] = (won.mean(0) - area) / (~event).sum()
    sums = [pulls[sample == k].sum() for k in range(4)]
    assert float(found["auroc"]) == pytest.approx(area)
    assert float(found["auroc_se"]) == pytest.approx(np.sqrt(4 / 3 * np.square(sums).sum()))
    record = record.assign_coords(sample=("token", np.zeros(8, dtype=int)))
    found = probes.exit_reliability(record, bins=2)
    assert found["frequency_se"].isnull().all()
    assert found["auroc_se"].isnull().all()


def test_a_bin_with_one_sample_has_no_error():
    record = uniform_confidence(np.random.default_rng(1), 20, tokens=3)
    record["confidence"].values[0, 0] = np.repeat(np.linspace(0.1, 0.39, 20), 3)
    record["confidence"].values[0, 0, :3] = 0.9  # a bin of one sample, three tokens
    record["confidence"].values[0, 0, 3:5] = 0.7  # two tokens of two samples
    record["confidence"].values[0, 0, 6] = 0.7
    found = probes.exit_reliability(record, bins=5).sel(event="agrees").isel(layer=0, measure=0)
    assert found["frequency_se"].isnull().values.tolist() == [False, False, True, False, True]
    assert found["frequency"].isnull().values.tolist() == [False, False, True, False, False]


def test_map_of_tokens(record):
    found = probes.exit_map(record, 0.25)
    sure = record["confidence"].sel(measure="max softmax").values
    for token in range(record.sizes["token"]):
        at = next((e for e in (0, 1) if sure[e, token] >= 0.25), 2)
        row, guess = found.isel(token=token), record["prediction"].values[:, token]
        assert int(row["left_at"]) == at
        assert int(row["correct"]) == (guess[at] == int(record["target"][token]))
        assert int(row["agrees"]) == (guess[at] == guess[2])
        loss = record["cross_entropy"].values[:, token]
        assert float(row["cross_entropy"]) == loss[at]
        assert float(row["cost"]) == loss[at] - loss[2]
        assert float(row["confidence"]) == sure[at, token]
    assert len(set(found["left_at"].values)) == 3
    routes = probes.route_exits(record, thresholds=[0.25])
    row = routes.sel(measure="max softmax", exit="any").squeeze()
    assert float(found["cross_entropy"].mean()) == pytest.approx(float(row["cross_entropy"]))
    alone = probes.exit_map(record, 0.25, measure="margin", exit="blocks.1")
    assert set(alone["left_at"].values) == {1, 2}


def test_a_calibrated_threshold_is_taken_as_it_comes(record):
    tau = probes.calibrate_exits(record, exit_rate=0.3)["tau"].sel(measure="margin", exit="any")
    found = probes.exit_map(record, tau, measure="margin")
    xr.testing.assert_identical(found, probes.exit_map(record, float(tau), measure="margin"))
    assert 0.3 <= float((found["left_at"] < 2).mean()) < 0.32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": float("nan")}, "`threshold`: expected a number, not NaN, got nan"),
        ({"threshold": "high"}, "`threshold`: expected a number"),
        ({"threshold": [0.1, 0.2]}, "`threshold`: expected a number"),
        ({"threshold": 0.5, "measure": "other"}, "`measure`: expected one of max softmax"),
        ({"threshold": 0.5, "exit": "blocks.2"}, "`exit`: expected one of blocks.0, blocks.1, any"),
    ],
)
def test_maps_that_do_not_fit(record, settings, message):
    with pytest.raises(ValueError, match=message):
        probes.exit_map(record, **settings)


def test_only_records_are_taken(record):
    for verb in (probes.route_exits, probes.exit_reliability):
        with pytest.raises(TypeError, match="`record`"):
            verb(record.drop_vars("confidence"))
