"""What results, schedules and states say about themselves."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import probes
from probes import schedules, weightings
from probes._model.pass_state import PassState


def make(**settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return model, torch.randn(9, 4), torch.arange(9) % 3, probes.attach(model, "1", n=3, **settings)


@pytest.mark.parametrize(("loss", "name"), [("ce", "ce"), (F.cross_entropy, "cross_entropy")])
def test_a_measurement_names_its_loss_and_counts_its_samples(loss, name):
    model, x, y, probe = make(loss=loss)
    model(x)
    attributes = probe.measure(y).attrs
    assert attributes["loss"] == name
    assert attributes["n_samples"] == 9
    assert "branch_loss" not in attributes


def test_a_compression_error_counts_its_samples():
    _, x, y, probe = make()
    assert probe.compression_error(x[:5], y[:5]).attrs["n_samples"] == 5


def test_layers_are_unicode_names_of_modules():
    model, x, y, probe = make()
    model(x)
    for result in (probe.measure(y), probe.compression_error(x, y)):
        layer = result["layer"]
        assert layer.dtype.kind == "U"
        assert "name of the module" in layer.attrs["long_name"]
        assert dict(model.named_modules())[layer.item()] is model[1]


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.constant(0.5),
        schedules.linear(1.0, 0.0, steps=4),
        schedules.cosine(1.0, 0.25, steps=7),
        schedules.step(2.0, 1.0, steps=8, at=0.75),
        schedules.balance(0.3),
        schedules.gate(2.0),
        weightings.asymmetric(0.75),
        weightings.asymmetric_l2(0.25),
        weightings.asymmetric(schedules.linear(1.0, 0.5, steps=3)),
    ],
    ids=repr,
)
def test_schedules_and_weightings_print_as_they_were_written(schedule):
    names = {**vars(schedules), **vars(weightings)}
    rebuilt = eval(repr(schedule), names)
    assert rebuilt == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_a_constant_schedule_gives_a_float():
    strength = schedules.constant(np.float32(0.5))(3)
    assert type(strength) is float
    assert strength == 0.5


def test_only_a_ready_pass_has_no_refusal():
    assert [state for state in PassState if not state.refusal] == [PassState.READY]
    assert len({state.refusal for state in PassState}) == 7  # no state is an alias of another


def test_a_state_is_what_the_pass_before_made_it():
    model, x, y, probe = make()
    states = [probe._capture.state]
    for run in (lambda: model(x), lambda: probe.loss(y), lambda: model.eval()(x), probe.detach):
        run()
        states.append(probe._capture.state)
    with torch.no_grad(), probes.attach(model.train(), "1", n=3) as other:
        model(x)
        states.append(other._capture.state)
    names = ["NO_PASS", "READY", "USED", "EVAL_MODE", "DETACHED", "NO_GRADIENTS"]
    assert [state.name for state in states] == names
