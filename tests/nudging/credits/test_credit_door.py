"""Credits are made by a call; one that was not called is refused with the cure."""

from functools import partial

import pytest
import torch
import xarray as xr
from torch.nn import functional as F

import nudging
import tests.helpers.nudging_models as nets

VERBS = {
    "nudge": nudging.nudge,
    "alignment": nudging.alignment,
    "correlation": nudging.correlation,
    "measure": nudging.measure,
}


class OwnCredit:
    """A class of a user's, whose instances are credits."""

    def __call__(self, state):
        return state.gradient()


class OwnMapping(dict):
    """A class that is itself a credit: it takes a state, and its instances are mappings."""

    def __init__(self, state):
        super().__init__(state.gradient())


@pytest.mark.parametrize("verb", list(VERBS))
@pytest.mark.parametrize(
    ("credit", "cure"),
    [
        (nudging.random, r"the function random.*call it first, nudging\.random\(\)"),
        (nudging.direct_feedback, r"call it first, nudging\.direct_feedback\(\)"),
        (nudging.feedback, r"call it first, nudging\.feedback\(\)"),
        (nudging.auxiliary, r"call it first, nudging\.auxiliary\(loss\)"),
        (nudging.StateBridge, r"the class StateBridge: call it first, nudging\.StateBridge\("),
        (nudging.CreditBridge, r"call it first, nudging\.CreditBridge\(\)"),
        (nudging.EquilibriumPropagation, r"nudging\.EquilibriumPropagation\(\)"),
        (partial(nudging.random, seed=1), r"call it first, nudging\.random\(\)"),
        (OwnCredit, r"the class OwnCredit: call it first, OwnCredit\(\)"),
    ],
)
def test_a_credit_that_was_not_called_is_refused_with_the_cure(verb, credit, cure):
    with pytest.raises(TypeError, match=f"`credit`: expected a credit, .*{cure}"):
        VERBS[verb](nets.make(nets.ResMLP), nets.batch(), credit, "blocks.*")


@pytest.mark.parametrize("verb", list(VERBS))
def test_backprop_is_the_same_called_or_not(verb):
    model, data = nets.make(nets.ResMLP), nets.batch()
    called, passed = (
        VERBS[verb](model, data, credit, "blocks.*", samples=None)
        for credit in (nudging.backprop(), nudging.backprop)
    )
    xr.testing.assert_identical(called, passed)
    assert called.attrs["credit"] == "backprop"


def test_backprop_of_a_state_is_the_gradient_of_each_samples_loss():
    model, (x, y) = nets.make(nets.ResMLP, dtype=torch.float64), nets.batch(dtype=torch.float64)
    state = nudging.observe(model, x, y, "head")
    expected = torch.softmax(state.outputs, 1) - F.one_hot(y, 5)
    for credit in (nudging.backprop(state), nudging.backprop()(state)):
        torch.testing.assert_close(credit["head"], expected)


@pytest.mark.parametrize("credit", [OwnCredit(), OwnMapping, partial(OwnCredit())])
def test_any_callable_of_a_state_is_a_credit(credit):
    model, data = nets.make(nets.ResMLP), nets.batch()
    result, expected = (
        nudging.nudge(model, data, some_credit, "blocks.*", samples=None)
        for some_credit in (credit, nudging.backprop())
    )
    assert result["loss_change"].identical(expected["loss_change"])


def test_public_objects_say_what_they_are():
    def head_loss(outputs, targets):
        return outputs.sum(1)

    assert repr(nudging.random(3)) == "Random(seed=3)"
    assert repr(nudging.auxiliary(head_loss)).endswith("head_loss)")
    assert repr(nudging.auxiliary(F.cross_entropy)) == "Auxiliary(loss=cross_entropy)"
    assert repr(nudging.feedback(scale=0.5)) == "Feedback(seed=0, scale=0.5)"
    feedback = nudging.direct_feedback(seed=1)
    assert repr(feedback) == "DirectFeedback(seed=1, scale=None, reuse_last=True)"
    equilibrium = nudging.EquilibriumPropagation(beta=0.1, anchored=True, of="error")
    settings = "beta=0.1, steps=20, rate=0.1, anchored=True, of='error'"
    assert repr(equilibrium) == f"EquilibriumPropagation({settings})"


@pytest.mark.parametrize("make", [nudging.StateBridge, nudging.CreditBridge])
def test_a_bridge_says_what_it_is_fitted_for(make):
    bridge = make(hidden=7)
    assert repr(bridge).startswith(f"<{make.__name__}(hidden=7, layers=3, times=32, ")
    assert repr(bridge).endswith(", not fitted>")
    bridge.fit(nets.make(nets.ResMLP), nets.batch(), "blocks.[01]", epochs=1)
    assert repr(bridge).endswith("seed=0), fitted for blocks.0, blocks.1>")
