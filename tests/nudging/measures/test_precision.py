"""Credits, models and losses of any size and precision."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nudging
import tests.helpers.nudging_models as nets


def times(factor, dtype):
    return lambda state: {k: v.to(dtype) * factor for k, v in state.gradient().items()}


@pytest.mark.parametrize(
    ("model_dtype", "credit_dtype", "factor"),
    [
        (torch.float16, torch.float32, 1e30),
        (torch.float16, torch.float32, 1e-30),
        (torch.float32, torch.float64, 1e200),
        (torch.float32, torch.float64, 1e-200),
    ],
)
def test_the_size_of_a_credit_has_no_say_in_its_direction(model_dtype, credit_dtype, factor):
    model, data = nets.make(nets.ResMLP, dtype=model_dtype), nets.batch(12, dtype=model_dtype)
    nudged, aligned = (
        [verb(model, data, times(f, credit_dtype), "blocks.*", samples=None) for f in (1, factor)]
        for verb in (nudging.nudge, nudging.alignment)
    )
    np.testing.assert_allclose(*(r["loss_change"] for r in nudged), rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(aligned[1]["cosine"], 1.0, rtol=1e-3)
    norms = [r["credit_norm"].values for r in aligned]
    np.testing.assert_allclose(norms[1] / factor, norms[0], rtol=1e-5)


def test_predictions_do_not_vanish_in_half_precision():
    model, data = nets.make(nets.ResMLP, dtype=torch.float16), nets.batch(20, dtype=torch.float16)
    small = times(1e-6, torch.float32)
    found = nudging.correlation(
        model, data, small, "blocks.*", samples=None, epsilon=0.1, dtype=None
    )
    assert (found["correlation"] > 0.9).all()


@pytest.mark.parametrize(
    ("make", "part"), [(nudging.StateBridge, "net"), (nudging.CreditBridge, "slow")]
)
def test_a_bridge_takes_small_steps_beside_a_model_in_half_precision(make, part):
    half = nets.make(nets.ResMLP, dtype=torch.bfloat16)
    gone = []
    for dtype in (torch.bfloat16, torch.float32):
        model, (x, y) = copy.deepcopy(half).to(dtype), nets.batch(16)
        state = nudging.observe(model, x.to(dtype), y, "blocks.*")
        weights = []
        for steps in (1, 9):
            bridge = make(hidden=16, lr=1e-4)
            for _ in range(steps):
                bridge.update(state)
            weights.append(getattr(bridge, part).first.weight.detach().double())
        gone.append(weights[1] - weights[0])
    assert gone[1].norm() > 0
    assert (gone[0] - gone[1]).norm() < 0.3 * gone[1].norm()


@pytest.mark.parametrize("count", [2, 3])
def test_two_samples_are_enough_to_refuse_a_loss_of_the_batch(count):
    model, data = nets.make(nets.ResMLP), nets.batch(count)
    for loss in (
        lambda o, t: F.cross_entropy(o, t, reduction="none") / len(t),
        lambda o, t: F.cross_entropy(o - o.mean(0), t, reduction="none"),
    ):
        with pytest.raises(ValueError, match="expected a loss of each sample by itself"):
            nudging.nudge(model, data, nudging.backprop, "blocks.*", samples=None, loss=loss)


def test_full_passes_are_found_where_the_first_samples_have_no_loss():
    class Sure(nets.Whispering):
        """Certain of the first two samples, whatever the blocks say."""

        def forward(self, x):
            return super().forward(x) + 1e6 * x[:, :5].clamp(min=3.0).sub(3.0)

    x, y = nets.batch(6)
    x[:, :5] = 0.0
    x[0, y[0]] = x[1, y[1]] = 4.0
    model = nets.make(Sure)
    state = nudging.observe(model, x, y, ["first", "second"])
    assert (state.losses()[:2] == 0).all()
    assert state.full_pass_reason.startswith("what follows first depends on more")


def test_random_credit_knows_nothing_of_the_directions_of_correlation():
    seen, model = [], nn.Sequential(nn.Identity())
    x = torch.zeros(300, 8, dtype=torch.float64)

    def loss(outputs, targets):
        seen.append(outputs.detach().clone())
        return outputs.sum(1)

    credit = nudging.random(4)
    nudging.correlation(
        model,
        (x, x),
        credit,
        "0",
        loss=loss,
        samples=None,
        seed=4,
        epsilon=1.0,
        n_directions=1,
        batch_size=300,
    )
    (direction,) = [o for o in seen if len(o) == 300 and o.norm(dim=1).min() > 0.5]
    given = credit(nudging.observe(model, x, x, "0", loss=loss))["0"]
    cosine = torch.cosine_similarity(direction, given)
    assert abs(cosine.mean()) < 4 / (8 * 300) ** 0.5
    assert cosine.abs().max() < 0.999
