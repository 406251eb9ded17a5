"""The study of exits: intervals, published rows, and the analysis of every run."""

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
import xarray as xr

from lab.data import text
from lab.studies import exit_study, exit_tables
from lab.training.train_text import TextRecipe, Variant, train_text_model

CORPUS = text.encode([text.documentation()[i : i + 2200] for i in (0, 3000, 6000)], name="short")
VARIANTS = [Variant("standard"), Variant("asymmetric", 0.7), Variant("asymmetric_l2", 0.7)]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return exit_study.measure_variants(CORPUS, VARIANTS, [1, 2], epochs=1, cache=cache)


def test_runs_are_those_of_plain_models(result):
    model = train_text_model(CORPUS, VARIANTS[1], TextRecipe(seed=2, epochs=1))
    x, y = text.windows(CORPUS.validation)
    with torch.no_grad():
        loss = float(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))

    cell = result.sel(variant="asymmetric 0.7", seed=2)
    assert cell["fixed_perplexity"].isel(layer=-1) == pytest.approx(np.exp(loss), rel=1e-5)

    single = train_text_model(CORPUS, exit_study.ONE_LAYER, TextRecipe(seed=2, epochs=1))
    with torch.no_grad():
        loss = float(F.cross_entropy(single(x).flatten(0, 1), y.flatten()))

    assert result["one_layer_perplexity"].sel(seed=2) == pytest.approx(np.exp(loss), rel=1e-5)


def test_the_interval_is_student_s():
    values = np.array([3.0, 5.0, 4.5, 6.0])
    mean, half = exit_study.interval(xr.DataArray(values, dims="seed"))
    low, high = scipy.stats.t.interval(0.95, 3, values.mean(), scipy.stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert np.isnan(exit_study.interval(xr.DataArray([1.0], dims="seed"))[1])


def test_published_numbers_stand_beside_ours(result):
    rows = {row.quantity: row for row in exit_study.compare_variants(result)}
    row = rows["asymmetric 0.7 at 0.9: shallow %"]
    cell = result.sel(measure="max softmax", exit="layers.0", variant="asymmetric 0.7")
    assert (row.published, row.verdict) == (73.4, "not comparable")
    assert row.here == pytest.approx(100 * float(cell["shallow"].sel(threshold=0.9).mean()))
    assert rows["asymmetric l2 0.7: compute %"].published == 42.5
    assert "asymmetric 0.3: PPL" not in rows  # not run here


@pytest.mark.parametrize("row", [v for t in exit_study.BY_THRESHOLD.values() for v in t.values()])
def test_published_compute_follows_from_the_published_exit_rate(row):
    _, shallow, compute = row
    assert compute == pytest.approx(100 - shallow * (1 - 1 / 3), abs=0.1)


def test_the_tables_have_every_variant_and_the_baselines(result):
    table = exit_tables.show_baselines(result)
    for word in ("standard", "asymmetric 0.7", "asymmetric l2 0.7", "random", "oracle"):
        assert word in table
    model = train_text_model(CORPUS, VARIANTS[0], TextRecipe(seed=1, epochs=1))
    skipped = exit_tables.show_decoding(model, CORPUS, samples=2, thresholds=[0.0]).splitlines()
    assert len(skipped) == 4
    assert skipped[2].split()[4] == "0.333"  # all leave after the first of three layers


def test_the_threshold_is_that_of_the_calibration_part():
    model = train_text_model(CORPUS, VARIANTS[1], TextRecipe(seed=1, epochs=1))
    tau = exit_tables.calibrate_threshold(model, CORPUS, exit_rate=0.25)
    x, _ = text.windows(CORPUS.calibration)
    with torch.no_grad():
        hidden = model.layers[0](model.embed(x, torch.arange(64)))
        sure = model.head(hidden).softmax(-1).amax(-1).flatten()
    assert float((sure >= tau - 1e-6).double().mean()) == pytest.approx(0.25, abs=1 / len(sure))
