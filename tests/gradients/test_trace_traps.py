"""What may go wrong around a trace: models that change, passes that fail, odd losses, copies."""

import copy
import pickle

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

import gradients
from gradients import Trace
from tests.gradients.test_trace_activation import LAYERS, losses, make_chain
from tests.helpers.small_network import gradients_of, make_batch, make_network, two_losses


def quiet_network():
    return make_network(dropout=0.0).eval()


def recorded(model, batch):
    """What a trace of its own makes of one step."""
    trace = Trace(model)
    trace.backward(*two_losses(model, *batch))
    return trace.to_dataset().isel(step=0, drop=True)


def test_parameters_that_are_replaced_are_followed():
    model, batch = quiet_network(), make_batch()
    trace = Trace(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    model.stem[0] = nn.Linear(4, 8).double()
    trace.backward(*two_losses(model, *batch))
    main, auxiliary = (gradients_of(loss, model) for loss in two_losses(model, *batch))
    pairs = [(main[f"stem.0.{n}"], auxiliary[f"stem.0.{n}"]) for n in ("weight", "bias")]
    dot = sum((a * b).sum().item() for a, b in pairs)
    found = trace.to_dataset().isel(step=0)
    np.testing.assert_allclose(found["dot"].sel(layer="stem.0"), dot, rtol=1e-11)
    assert np.isfinite(found["dot"].sel(layer=["", "stem.1"])).all()


@pytest.mark.parametrize("name", ["extra", "head"])
def test_parameters_that_come_or_change_shape_are_refused(name):
    model = quiet_network()
    trace = Trace(model)
    setattr(model, name, nn.Linear(8, 5).double())
    main, auxiliary = two_losses(model, *make_batch())
    with pytest.raises(ValueError, match=f"that it had when the trace was made, got .* {name};"):
        trace.backward(main, auxiliary)
    assert all(p.grad is None for p in model.parameters())


def test_a_parameter_that_the_model_itself_gains_is_refused_in_words():
    model = quiet_network()
    trace = Trace(model)
    model.second_token = nn.Parameter(torch.zeros(8).double())
    with pytest.raises(ValueError, match=r"got others in \(the model's own\); make a new trace"):
        trace.backward(*two_losses(model, *make_batch()))


def test_losses_of_another_model_are_refused():
    model = quiet_network()
    with pytest.raises(ValueError, match="losses: none depends on a parameter of `model`"):
        Trace(copy.deepcopy(model)).backward(*two_losses(model, *make_batch()))
    assert all(p.grad is None for p in model.parameters())
    with torch.no_grad():
        found = two_losses(model, *make_batch())
    with pytest.raises(ValueError, match="made with gradients enabled"):
        gradients.compare(model, found)


def test_a_model_may_sit_out_a_later_step():
    model = quiet_network()
    trace = Trace(model)
    trace.backward(*two_losses(model, *make_batch()))
    other = torch.ones((), requires_grad=True)
    trace.backward(2 * other, 3 * other)
    last = trace.to_dataset().isel(step=1)
    assert np.isnan(last["cosine_total"])
    assert np.isnan(last["gradient_norm"])  # not zero: there was none
    assert last["loss_aux"] == 3


@pytest.mark.parametrize("joined", [False, True])
def test_a_backward_pass_of_something_else_does_not_enter(joined):
    model, batch = quiet_network(), make_batch()
    expected, trace = recorded(model, batch), Trace(model)
    if joined:
        total = trace.join(*two_losses(model, *batch))  # kept, so that its graph lives on
        total.backward()
    else:
        total = two_losses(model, *batch)
        trace.backward(*total, update=False)
    model(batch[0])[0].square().sum().backward()
    trace.advance()
    xr.testing.assert_allclose(trace.to_dataset().isel(step=0, drop=True), expected, rtol=1e-12)


def fail(gradient):
    raise ZeroDivisionError


@pytest.mark.parametrize("joined", [False, True])
def test_an_update_with_a_failed_pass_is_left_out_and_the_next_is_right(joined):
    model, (x, y) = quiet_network(), make_batch()
    expected, trace = recorded(model, (x, y)), Trace(model)

    def backward(x, update):
        found = two_losses(model, x, y)
        if not joined:
            return trace.backward(*found, update=update)
        trace.join(*found).backward()
        return trace.advance() if update else None

    failing = x.clone().requires_grad_()
    failing.register_hook(fail)  # at the very end of the pass
    backward(x, update=False)
    with pytest.raises(ZeroDivisionError):
        backward(failing, update=False)
    backward(x, update=True)
    backward(x, update=True)
    found = trace.to_dataset()
    assert list(found["step"]) == [1]
    xr.testing.assert_allclose(found.isel(step=0, drop=True), expected, rtol=1e-12)


def test_layers_that_are_frozen_for_a_while_are_nan_for_a_while():
    model = quiet_network()
    trace = Trace(model)
    for wanted in (True, False, True):
        model.stem[0].requires_grad_(wanted)
        trace.backward(*two_losses(model, *make_batch()))
    dot = trace.to_dataset()["dot"].sel(layer="stem.0").values
    assert np.isnan(dot).tolist() == [False, True, False]
    assert dot[0] == dot[2]


def test_a_broken_loss_is_nan_and_later_steps_are_not():
    model = quiet_network()
    trace = Trace(model)
    for factor in (np.nan, np.inf, 1.0):
        main, auxiliary = two_losses(model, *make_batch())
        trace.backward(factor * main, auxiliary)
    found = trace.to_dataset()
    for name in ("dot", "norm_main", "norm_aux", "cosine"):
        known = found[name].notnull().any("layer")
        assert known.values.tolist() == [False, False, True], name
    assert np.isnan(found["gradient_norm"]).values.tolist() == [True, True, False]
    summary = gradients.summarise(found)
    assert summary["n_steps"] == 1
    assert summary["mean"] == found["cosine_total"][2]


def test_every_evaluation_of_a_closure_counts_as_an_update():
    model, batch = quiet_network(), make_batch()
    trace, optimizer = Trace(model), torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        found = two_losses(model, *batch)
        trace.backward(*found)
        return sum(found).detach()

    optimizer.step(closure)
    found = trace.to_dataset()
    assert list(found["step"]) == [0, 1, 2]
    xr.testing.assert_allclose(
        found.isel(step=0, drop=True), recorded(quiet_network(), batch), rtol=1e-12
    )


def test_no_update_yet_is_an_empty_result(tmp_path):
    model = quiet_network()
    trace = Trace(model, 100)
    trace.backward(*two_losses(model, *make_batch()), update=False)  # and no more
    found = trace.to_dataset()
    assert dict(found.sizes) == {"step": 0, "layer": 6}
    found.to_netcdf(tmp_path / "empty.nc", engine="h5netcdf")
    for verb in (gradients.summarise, gradients.plot_trace, gradients.plot_layers):
        with pytest.raises(ValueError, match="`trace`: expected"):
            verb(found)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda trace: pickle.loads(pickle.dumps(trace))])
def test_a_copy_of_a_trace_goes_its_own_way(again):
    model, batch = quiet_network(), make_batch()
    trace = Trace(model)
    trace.backward(*two_losses(model, *batch))
    other = again(trace)
    other.backward(*two_losses(other.model, *batch))
    assert (trace.step, other.step) == (1, 2)
    assert trace.to_dataset().sizes["step"] == 1
    np.testing.assert_array_equal(*other.to_dataset()["dot"].values)

    chain, x = make_chain(), torch.randn(6, 5).double()
    trace = Trace(chain, level="activation", layers=LAYERS)
    trace.backward(*losses(chain, x))
    other = again(trace)
    xr.testing.assert_identical(other.to_dataset(), trace.to_dataset())
    with pytest.raises(ValueError, match="nor does a copy of it"):
        other.backward(*losses(other.model, x))
    trace.backward(*losses(chain, x))
    assert trace.to_dataset().sizes["step"] == 2


@pytest.mark.parametrize("way", ["backward", "join"])
def test_a_loss_without_a_graph_is_refused_unless_it_is_an_auxiliary_zero(way):
    model, batch = quiet_network(), make_batch()
    main, auxiliary = two_losses(model, *batch)
    trace = Trace(model)
    with pytest.raises(ValueError, match="losses: 'main': expected a loss that depends on `model`"):
        getattr(trace, way)(main.detach(), auxiliary)
    with pytest.raises(ValueError, match=r"'auxiliary': .* got the constant 0\.5: detached"):
        getattr(trace, way)(main, torch.tensor(0.5))
    assert (trace.step, trace.objectives) == (0, None)

    # A probe that is not connected gives a constant zero.
    getattr(trace, way)(main, torch.zeros(()))


@pytest.mark.parametrize("every", [1, 2])
def test_losses_that_were_backpropagated_before_get_a_sentence(every):
    model, batch = quiet_network(), make_batch()
    trace = Trace(model, every)
    trace.backward(*two_losses(model, *batch))
    main, auxiliary = two_losses(model, *batch)
    (main + auxiliary).backward()
    with pytest.raises(ValueError, match=r"backpropagated before, .* so call it alone"):
        trace.backward(main, auxiliary)

    # The trace goes on.
    trace.backward(*two_losses(model, *batch))
    assert trace.step == 2
