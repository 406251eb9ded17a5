"""A result carries its credit, so that a measurement can be repeated."""

import pytest
import torch
import xarray as xr

import nudging
import tests.helpers.nudging_models as nets

BLOCKS = ["embed", "blocks.*"]


def test_a_measurement_is_repeated_from_its_file(tmp_path):
    model, data = nets.make(nets.ResMLP), nets.batch(40)
    credit = nudging.direct_feedback(seed=5)
    found = nudging.measure(model, data, credit, BLOCKS, samples=20, n_directions=2)
    found.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "found.nc", engine="h5netcdf") as opened:
        again = nudging.load_credit(nudging.saved_credit(opened.load()))
    xr.testing.assert_identical(
        nudging.measure(model, data, again, BLOCKS, samples=20, n_directions=2), found
    )
    # Fresh feedback measures something else.
    fresh = nudging.direct_feedback(seed=6)
    other = nudging.measure(model, data, fresh, BLOCKS, samples=20, n_directions=2)
    assert (other["cosine"] != found["cosine"]).all()


def test_the_saved_credit_is_what_the_credit_wrote():
    model, data = nets.make(nets.ResMLP), nets.batch(10)
    credit = nudging.direct_feedback(seed=5)
    found = nudging.nudge(model, data, credit, BLOCKS, samples=None)
    xr.testing.assert_identical(nudging.saved_credit(found), credit.to_dataset())
    assert "seed=5" in found.attrs["credit"]


def test_a_fitted_bridge_is_saved_with_the_result():
    model, data = nets.make(nets.ResMLP), nets.batch(16)
    bridge = nudging.StateBridge(hidden=8)
    bridge.fit(model, data, BLOCKS, epochs=1)
    found = nudging.nudge(model, data, bridge, BLOCKS, samples=None, keep_samples=True)
    again = nudging.load_credit(nudging.saved_credit(found))
    repeated = nudging.nudge(model, data, again, BLOCKS, samples=None, keep_samples=True)
    xr.testing.assert_identical(found, repeated)


def test_without_a_saved_credit_there_is_nothing_to_take_out():
    found = nudging.nudge(
        nets.make(nets.ResMLP), nets.batch(), nudging.random(2), BLOCKS, samples=None
    )
    assert found.attrs["credit"] == "Random(seed=2)"
    with pytest.raises(ValueError, match="`result`: expected one with a saved credit"):
        nudging.saved_credit(found)


def test_only_a_saved_credit_can_be_loaded():
    result = nudging.nudge(
        nets.make(nets.ResMLP), nets.batch(), nudging.direct_feedback(), BLOCKS, samples=None
    )
    with pytest.raises(ValueError, match=r"got 'DirectFeedback\(.*`nudging.saved_credit` takes it"):
        nudging.load_credit(result)
    with pytest.raises(ValueError, match=r"`dataset`: expected a saved credit .*, got None$"):
        nudging.load_credit(xr.Dataset())
    for verb in (nudging.load_credit, nudging.saved_credit):
        with pytest.raises(TypeError, match=r"expected an xarray.Dataset, got dict"):
            verb({})


def test_a_credit_takes_over_no_other_kind():
    model, (x, y) = nets.make(nets.ResMLP), nets.batch()
    state = nudging.observe(model, x, y, BLOCKS)
    direct, bridge = nudging.direct_feedback(), nudging.StateBridge(hidden=8)
    direct(state)
    bridge.update(state)
    for other, given in ((nudging.feedback(), direct), (nudging.CreditBridge(hidden=8), bridge)):
        with pytest.raises(ValueError, match="`saved`: expected the state of a "):
            other.load_state_dict(given.state_dict())
    wider = nudging.observe(nets.make(lambda: nets.ResMLP(classes=7)), x, y, BLOCKS)
    with pytest.raises(ValueError, match=r"`credit`: expected 5 outputs, .*, got 7"):
        direct(wider)


def test_a_long_chain_of_feedback_comes_back_in_its_order(tmp_path):
    model, data = nets.make(lambda: nets.ResMLP(depth=11)), nets.batch()
    found = nudging.nudge(model, data, nudging.feedback(seed=3), BLOCKS, samples=None)
    found.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "found.nc", engine="h5netcdf") as opened:
        again = nudging.load_credit(nudging.saved_credit(opened.load()))
    xr.testing.assert_identical(nudging.nudge(model, data, again, BLOCKS, samples=None), found)


def test_the_name_of_a_credit_is_the_same_in_every_process():
    def rule(state):
        return state.gradient()

    model, data = nets.make(nets.ResMLP), nets.batch()
    for credit, name in {
        nudging.backprop: "backprop",
        rule: "rule",
        nudging.auxiliary(torch.nn.functional.cross_entropy): "Auxiliary(loss=cross_entropy)",
        nudging.EquilibriumPropagation(beta=0.1, steps=3): (
            "EquilibriumPropagation(anchored=False, beta=0.1, of='displacement', rate=0.1, steps=3)"
        ),
    }.items():
        found = nudging.alignment(model, data, credit, BLOCKS, samples=None)
        assert found.attrs["credit"].endswith(name)
        assert "0x" not in found.attrs["credit"]
