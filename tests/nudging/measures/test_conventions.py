"""What all verbs of the package have in common: numbers of numpy, attributes, layers."""

import numpy as np

import nudging
import tests.helpers.nudging_models as nets


def test_step_lengths_may_come_from_numpy():
    model = nets.make(nets.ResMLP)
    for eta in (np.array([1, 2]), np.float32(0.5), np.linspace(0.1, 0.2, 3), np.array(0.3)):
        found = nudging.nudge(model, nets.batch(), nudging.random(), "blocks.0", eta=eta, samples=4)
        np.testing.assert_array_equal(found["eta"], np.atleast_1d(eta))


def test_whole_numbers_may_come_from_numpy():
    model, data = nets.make(nets.ResMLP), nets.batch()
    settings = {"n_directions": 2, "seed": 3, "samples": None}
    expected = nudging.correlation(model, data, nudging.random(1), "blocks.*", **settings)
    settings["n_directions"] = np.int64(2)
    result = nudging.correlation(model, data, nudging.random(np.int32(1)), "blocks.*", **settings)
    assert result.identical(expected)
    bridge = nudging.CreditBridge(hidden=np.int64(4), draws=np.int64(2))
    assert nudging.load_credit(bridge.to_dataset()).settings["draws"] == 2


def test_all_results_say_their_samples_loss_and_precision_in_the_same_words():
    model, data = nets.make(nets.ResMLP), nets.batch(10)
    results = [
        nudging.stability(model, data, "blocks.*", n_batches=2, batch_size=5),
        nudging.audit(model, data, "blocks.*", n_batches=2, batch_size=5),
        nudging.StateBridge(hidden=4).fit(model, data, "blocks.*", epochs=1),
        *(
            verb(model, data, nudging.backprop(), "blocks.*", samples=None, dtype=None)
            for verb in (nudging.nudge, nudging.alignment, nudging.correlation, nudging.measure)
        ),
    ]
    for result in results:
        words = [result.attrs[name] for name in ("loss", "n_samples", "dtype")]
        assert words == ["cross_entropy", 10, "float32"], result.attrs["made_by"]


def test_layers_are_names_of_modules():
    model = nets.make(nets.ResMLP)
    result = nudging.nudge(model, nets.batch(), nudging.backprop(), ["blocks.*", "embed"])
    modules = dict(model.named_modules())
    assert result["layer"].dtype.kind == "U"
    assert all(name in modules for name in result["layer"].values)
    assert "name of the module" in result["layer"].attrs["long_name"]
