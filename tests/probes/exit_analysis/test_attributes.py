"""What results of exits say of themselves, and which settings are refused before any work."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import probes
from tests.helpers.decoders import Averager
from tests.helpers.exit_models import BLOCKS, sharpened, text, text_model


def results_of_exits():
    model, data = sharpened(), text(samples=9)
    record = probes.record_exits(model, data, BLOCKS, samples=6)
    return {
        "record_exits": record,
        "exits": probes.exits(model, data, BLOCKS, samples=6),
        "route_exits": probes.route_exits(record),
        "exit_reliability": probes.exit_reliability(record),
        "calibrate_exits": probes.calibrate_exits(record, exit_rate=0.5),
        "exit_map": probes.exit_map(record, 0.5),
    }


def test_results_count_their_samples_and_name_their_loss():
    for verb, result in results_of_exits().items():
        assert result.attrs["n_samples"] == 6, verb
        assert "samples" not in result.attrs, verb
        assert result.attrs["loss"] == "cross_entropy", verb


def test_layers_are_unicode_strings_that_name_modules():
    for verb, result in results_of_exits().items():
        if "layer" in result.coords:
            assert result["layer"].dtype.kind == "U", verb
            assert result["layer"].values.tolist() == BLOCKS, verb
            assert "name of the module" in result["layer"].attrs["long_name"], verb


def test_losses_say_of_how_many_samples_they_are():
    model, (ids, y) = text_model(), text(samples=7)
    exits = probes.attach_exits(model, BLOCKS)

    before = exits.measure()
    assert np.isnan(before["loss"]).all()
    assert np.isnan(before["weight"]).all()
    assert before.attrs["n_samples"] == 0

    model(ids[:4])
    exits.loss(y[:4])
    after = exits.measure()
    assert after.attrs["n_samples"] == 4
    assert after.attrs["loss"] == "cross_entropy"
    assert after["layer"].dtype.kind == "U"
    assert "name of the module" in after["layer"].attrs["long_name"]


def test_generated_text_counts_its_prompts():
    made = probes.generate(Averager(), torch.ones(3, 2, dtype=torch.long), 4)
    assert made.attrs["n_samples"] == 3


def test_whole_numbers_of_numpy_are_whole_numbers():
    model, data = sharpened(), text()
    settings = {"batch_size": 3, "bins": 5, "samples": 4}
    of_numpy = {name: np.int64(value) for name, value in settings.items()}
    xr.testing.assert_identical(
        probes.exits(model, data, BLOCKS, **of_numpy),
        probes.exits(model, data, BLOCKS, **settings),
    )
    decoder, prompt = Averager(), torch.ones(1, 2, dtype=torch.long)
    xr.testing.assert_identical(
        probes.generate(decoder, prompt, np.int64(3)), probes.generate(decoder, prompt, 3)
    )


@pytest.mark.parametrize("settings", [{"bins": 0}, {"bins": True}, {"thresholds": [np.nan]}])
def test_settings_are_refused_before_the_model_runs(settings):
    class Counting(nn.Sequential):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counting(nn.Tanh(), nn.Tanh(), nn.Linear(4, 3))
    data = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    with pytest.raises(ValueError, match=f"`{next(iter(settings))}`"):
        probes.exits(model, data, ["0", "1"], **settings)
    assert model.calls == 0
